package harness

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
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"time"
)

// http1 is net/http as it comes: one client for all callers, which has a
// connection for each call at a time.
var http1 = Program{
	Name:  "http1",
	Title: "HTTP/1.1",
	Serve: func(ln net.Listener, fail func(error)) (func(), error) {
		return serveHTTP(ln, fail, nil)
	},
	Connect: func(dial Dial, calls int) (Client, error) {
		return connectHTTP("http", dial, calls, &http.Transport{Protocols: only((*http.Protocols).SetHTTP1)})
	},
}

// http2 is net/http over TLS. All calls share one connection.
var http2 = Program{
	Name:  "http2",
	Title: "HTTP/2 over TLS",
	Serve: func(ln net.Listener, fail func(error)) (func(), error) {
		cert, err := certificate()
		if err != nil {
			return nil, err
		}
		return serveHTTP(ln, fail, &tls.Config{Certificates: []tls.Certificate{cert}})
	},
	Connect: func(dial Dial, _ int) (Client, error) {
		return connectHTTP("https", dial, 1, &http.Transport{
			Protocols: only((*http.Protocols).SetHTTP2),
			// The certificate is the server's own of this run. To check it would
			// cost a handshake more, and there is none in what is measured.
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		})
	},
}

func only(set func(*http.Protocols, bool)) *http.Protocols {
	p := new(http.Protocols)
	set(p, true)
	return p
}

func serveHTTP(ln net.Listener, fail func(error), secure *tls.Config) (stop func(), err error) {
	s := &http.Server{
		Handler:   http.HandlerFunc(echoHTTP),
		TLSConfig: secure,
		Protocols: new(http.Protocols),
		ErrorLog:  log.New(failWriter(fail), "", 0),
	}
	s.Protocols.SetHTTP1(secure == nil)
	s.Protocols.SetHTTP2(secure != nil)
	go func() {
		serve := s.Serve
		if secure != nil {
			serve = func(ln net.Listener) error { return s.ServeTLS(ln, "", "") }
		}
		if err := serve(ln); !errors.Is(err, http.ErrServerClosed) { // ended by stop
			fail(fmt.Errorf("serve: %w", err))
		}
	}()
	return func() { s.Close() }, nil
}

// failWriter makes failures of what net/http logs.
type failWriter func(error)

func (f failWriter) Write(line []byte) (int, error) {
	f(errors.New(string(bytes.TrimSpace(line))))
	return len(line), nil
}

// echoHTTP answers with the body of the request.
func echoHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, largestMessage))
	if err != nil {
		panic(err) // net/http logs it and closes the connection
	}
	w.Write(body) // the client sees what is missing
}

type httpClient struct {
	url    string
	client http.Client
}

// connectHTTP opens as many connections as asked for.
func connectHTTP(scheme string, dial Dial, conns int, transport *http.Transport) (*httpClient, error) {
	transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }
	transport.MaxIdleConnsPerHost = conns
	c := &httpClient{url: scheme + "://server/echo", client: http.Client{Transport: transport}}
	// A first request on each connection. None is sent before all have one, as
	// the first to be done would hand its own on.
	ctx, fail := context.WithCancelCause(context.Background())
	defer fail(nil)
	var waiting, done sync.WaitGroup
	waiting.Add(conns)
	all := make(chan struct{})
	go func() {
		waiting.Wait() // ended by the connections, or given up below
		close(all)
	}()
	for range conns {
		var once sync.Once
		here := func() { once.Do(waiting.Done) }
		ctx := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) {
			here()
			select { // ended by the last connection, or the first failure
			case <-all:
			case <-ctx.Done():
			}
		}})
		done.Go(func() {
			defer here()
			message := make([]byte, minMessage)
			if err := c.post(ctx, message, make([]byte, minMessage)); err != nil {
				fail(err)
			}
		})
	}
	done.Wait()
	if err := context.Cause(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (c *httpClient) Call(_ int, message, answer []byte) error {
	return c.post(context.Background(), message, answer)
}

func (c *httpClient) post(ctx context.Context, message, answer []byte) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(message))
	if err != nil {
		return err
	}
	response, err := c.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK || response.ContentLength != int64(len(answer)) {
		return fmt.Errorf("the answer is %s with %d bytes", response.Status, response.ContentLength)
	}
	if _, err := io.ReadFull(response.Body, answer); err != nil {
		return fmt.Errorf("read body: %w", err)
	}
	// To the end, or the connection cannot be used again.
	if n, err := response.Body.Read(make([]byte, 1)); n > 0 || err != io.EOF {
		return fmt.Errorf("the body does not end: %w", err)
	}
	return nil
}

func (c *httpClient) Close() error {
	c.client.CloseIdleConnections()
	return nil
}

// certificate is one that nobody has signed, for an hour.
func certificate() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make key: %w", err)
	}
	template := x509.Certificate{
		SerialNumber: big.NewInt(1),
		DNSNames:     []string{"server"},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
