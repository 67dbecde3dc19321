package main

import (
	"bytes"
	"context"
	"crypto/x509"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/seed-b9b531af/ramjet/examples/internal/child"
	"github.com/seed-b9b531af/ramjet/examples/internal/killtest"
	"github.com/seed-b9b531af/ramjet/examples/internal/programtest"
	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/stretchr/testify/require"
)

// TestMain lets the test program be the server process that the client
// starts.
func TestMain(m *testing.M) { programtest.Main(m, "-listen", main) }

func TestTwoProcessesExchangeRequests(t *testing.T) {
	for flags, proto := range map[string]string{"": "HTTP/1.1", "-tls": "HTTP/1.1", "-http2": "HTTP/2.0", "-http2 -tls": "HTTP/2.0"} {
		t.Run("flags "+flags, func(t *testing.T) {
			var out bytes.Buffer
			require.NoError(t, run(t.Context(), append([]string{"-n", "200"}, strings.Fields(flags)...), &out))
			require.Contains(t, out.String(), "200 requests by "+proto)
			killtest.RequireTransport(t, out.String(), "transport: %s", rnet.Auto)
		})
	}
}

func TestAServerWithoutTheRightCertificateIsNotTrusted(t *testing.T) {
	var certs, keys [2]string
	for i := range certs {
		var err error
		certs[i], keys[i], err = makeCertificate(t.TempDir())
		require.NoError(t, err)
	}
	p, err := child.Start(t.Context(), "-listen", "127.0.0.1:0", "-cert", certs[0], "-key", keys[0])
	require.NoError(t, err)
	defer p.Stop()
	err = run(t.Context(), []string{"-n", "1", "-url", "https://" + p.Addr, "-ca", certs[1]}, io.Discard)
	require.ErrorAs(t, err, new(x509.UnknownAuthorityError))
	require.NoError(t, run(t.Context(), []string{"-n", "1", "-url", "https://" + p.Addr, "-ca", certs[0]}, io.Discard))
}

func TestAKeyWithoutACertificateIsNoServerWithoutTLS(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, flag := range []string{"-key", "-cert"} {
		require.ErrorContains(t, run(ctx, []string{"-listen", "127.0.0.1:0", flag, "file.pem"}, io.Discard), "belong together")
	}
}

func TestBodiesLargerThanAnyWindowComeBack(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	url, done := serveHere(ctx, t)
	require.NoError(t, run(ctx, []string{"-n", "20", "-workers", "4", "-body", "4194304", "-url", url}, io.Discard))
	cancel()
	require.NoError(t, <-done) // ended by cancel
}

// serveHere runs a server in this process until ctx ends.
func serveHere(ctx context.Context, t *testing.T) (url string, done <-chan error) {
	t.Helper()
	r, w := io.Pipe()
	served := make(chan error, 1)
	go func() {
		s := server{addr: "127.0.0.1:0"}
		err := s.run(ctx, w)
		w.CloseWithError(io.ErrUnexpectedEOF)
		served <- err
	}()
	line := make([]byte, 64)
	n, err := r.Read(line) // ended by the announcement, or by serve's return
	require.NoError(t, err)
	_, addr, _ := strings.Cut(strings.TrimSpace(string(line[:n])), "listening on ")
	return "http://" + addr, served
}

func TestAnOrdinaryClientIsServedIfTheEnvironmentAllowsTCP(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	url, done := serveHere(ctx, t)
	ordinary := &http.Client{Transport: &http.Transport{}}
	resp, err := ordinary.Post(url+"/echo", "text/plain", strings.NewReader("hello"))
	switch os.Getenv("RNET_TRANSPORT") {
	case "", "auto", "tcp":
		require.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.Equal(t, "hello", string(body))
		require.NoError(t, resp.Body.Close())
	default:
		require.Error(t, err)
	}
	ordinary.CloseIdleConnections()
	cancel()
	require.NoError(t, <-done) // ended by cancel
}

func TestAWrongAnswerIsNoticed(t *testing.T) {
	ln, err := rnet.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	liar := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		io.WriteString(w, "something else")
	})}
	go liar.Serve(ln)
	defer liar.Close()
	err = run(t.Context(), []string{"-n", "1", "-url", "http://" + ln.Addr().String()}, io.Discard)
	require.ErrorContains(t, err, "came back changed")
}
