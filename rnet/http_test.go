package rnet

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"hash/crc64"
	"io"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/internal/leak"
	"github.com/seed-b9b531af/ramjet/rnet/internal/traffic"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var checksums = crc64.MakeTable(crc64.ECMA)

const checksumHeader = "X-Checksum"

// echoChecked answers with the body of the request, after it has compared its
// checksum.
func echoChecked(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	sum := strconv.FormatUint(crc64.Checksum(body, checksums), 16)
	if sum != r.Header.Get(checksumHeader) {
		http.Error(w, "checksum of the request", http.StatusBadRequest)
		return
	}
	w.Header().Set(checksumHeader, sum)
	w.Write(body)
}

// requestChecked sends a body and compares what comes back.
func requestChecked(client *http.Client, url string, body []byte) error {
	req, err := http.NewRequest("POST", url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	sum := strconv.FormatUint(crc64.Checksum(body, checksums), 16)
	req.Header.Set(checksumHeader, sum)
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return err
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("%s: %s", resp.Status, got)
	case resp.Header.Get(checksumHeader) != sum:
		return errors.New("checksum of the answer's header")
	case !bytes.Equal(got, body):
		return errors.New("body of the answer")
	}
	return nil
}

// bodySize is 0 to 4 MiB, most of them small: a few in a thousand are large.
func bodySize(rnd *mathrand.Rand) int {
	switch n := rnd.IntN(1000); {
	case n < 100:
		return 0
	case n < 900:
		return rnd.IntN(4 << 10)
	case n < 995:
		return rnd.IntN(64 << 10)
	default:
		return rnd.IntN(4<<20 + 1)
	}
}

// httpCases are the ways in which net/http uses connections.
var httpCases = []struct {
	name     string
	tls      bool
	http2    bool
	oneShot  bool // a connection for each request
	requests int  // of a full run
}{
	{name: "keep-alive", requests: 100000},
	{name: "connection each", oneShot: true, requests: 100000},
	{name: "tls", tls: true, requests: 100000},
	{name: "tls, connection each", tls: true, oneShot: true, requests: 5000},
	{name: "http2", http2: true, requests: 10000},
	{name: "http2 with tls", http2: true, tls: true, requests: 10000},
}

func TestHTTPRequestsComeBackUnchanged(t *testing.T) {
	leak.Check(t)
	const clients = 64
	body := traffic.Bytes(4, 4<<20)
	over(t, between, func(t *testing.T, k carrier) {
		for _, tc := range httpCases {
			t.Run(tc.name, func(t *testing.T) {
				ln := k.listen(t)
				server := &http.Server{Handler: http.HandlerFunc(echoChecked), Protocols: new(http.Protocols)}
				transport := &http.Transport{
					DialContext: k.dialer().DialContext, DisableKeepAlives: tc.oneShot,
					MaxIdleConnsPerHost: clients, Protocols: new(http.Protocols),
				}
				scheme := "http://"
				if tc.tls {
					scheme = "https://"
					server.TLSConfig, transport.TLSClientConfig = selfSigned(t)
				}
				for _, p := range []*http.Protocols{server.Protocols, transport.Protocols} {
					p.SetHTTP1(!tc.http2)
					p.SetHTTP2(tc.http2 && tc.tls)
					p.SetUnencryptedHTTP2(tc.http2 && !tc.tls)
				}
				serving := hang.Start(t, func() {
					if tc.tls {
						assert.ErrorIs(t, server.ServeTLS(ln, "", ""), http.ErrServerClosed)
					} else {
						assert.ErrorIs(t, server.Serve(ln), http.ErrServerClosed)
					}
				})
				client := &http.Client{Transport: transport}
				url := scheme + ln.Addr().String()
				requests, few := times(tc.requests/100, tc.requests), 3*clients
				if k.transport == TCP { // shows that the test is sound, no more
					requests, few = tc.requests/200, clients
				}
				requests = orRaced(requests, min(requests, few))
				left := atomic.Int64{}
				left.Store(int64(requests))
				var work sync.WaitGroup
				for i := range clients {
					work.Go(func() {
						rnd := traffic.NewRand(uint64(i))
						for left.Add(-1) >= 0 {
							n := bodySize(rnd)
							from := rnd.IntN(len(body) - n + 1)
							if !assert.NoError(t, requestChecked(client, url, body[from:from+n])) {
								return
							}
						}
					})
				}
				work.Wait()
				hang.Eventually(t, "the server has shut down", func() bool {
					// those too that were dialed in vain and are there only now
					transport.CloseIdleConnections()
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					return server.Shutdown(ctx) == nil
				})
				serving()
			})
		}
	})
}

// A handler that does not read the body, a client that goes away, and a
// handler that panics: what makes net/http use deadlines and closes.
func TestHTTPSurvivesRudeness(t *testing.T) {
	leak.Check(t)
	over(t, []carrier{overTCP, overSoft}, func(t *testing.T, k carrier) {
		ln := k.listen(t)
		gone := make(chan struct{}, 100)
		mux := http.NewServeMux()
		mux.HandleFunc("/ignore", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
		mux.HandleFunc("/panic", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
		mux.HandleFunc("/wait", func(_ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done() // ended by the client's departure
			gone <- struct{}{}
		})
		mux.HandleFunc("/echo", echoChecked)
		server := &http.Server{Handler: mux}
		serving := hang.Start(t, func() { assert.ErrorIs(t, server.Serve(ln), http.ErrServerClosed) })
		transport := &http.Transport{DialContext: k.dialer().DialContext}
		client := &http.Client{Transport: transport}
		url := "http://" + ln.Addr().String()
		for range 20 {
			resp, err := client.Post(url+"/ignore", "", bytes.NewReader(make([]byte, 100<<10)))
			if err == nil { // the body may also meet a connection that is closed already
				require.Equal(t, http.StatusTeapot, resp.StatusCode)
				resp.Body.Close()
			}
			_, err = client.Get(url + "/panic")
			require.Error(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
			req, err := http.NewRequestWithContext(ctx, "GET", url+"/wait", nil)
			require.NoError(t, err)
			_, err = client.Do(req)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			cancel()
			require.NoError(t, requestChecked(client, url+"/echo", []byte("still there")))
		}
		for len(gone) > 0 {
			<-gone
		}
		transport.CloseIdleConnections()
		require.NoError(t, server.Close())
		serving()
	})
}

func selfSigned(t testing.TB) (server, client *tls.Config) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: hostAddresses(),
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, &key.PublicKey, key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	roots := x509.NewCertPool()
	roots.AddCert(cert)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}},
		&tls.Config{RootCAs: roots}
}

// hostAddresses are the addresses on which carriers listen.
func hostAddresses() []net.IP {
	list := []net.IP{net.IPv4(127, 0, 0, 1)}
	for _, k := range kernelCarriers() {
		list = append(list, net.ParseIP(k.host))
	}
	return list
}
