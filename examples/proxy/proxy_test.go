package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/seed-b9b531af/ramjet/examples/internal/killtest"
	"github.com/seed-b9b531af/ramjet/examples/internal/programtest"
	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/stretchr/testify/require"
)

// TestMain lets the test program be the second proxy.
func TestMain(m *testing.M) { programtest.Main(m, "-from", main) }

func TestTheDemonstrationEchoesThroughTwoProxies(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), nil, &out))
	require.Contains(t, out.String(), "that knows only TCP\n")
	killtest.RequireTransport(t, out.String(), "transport between the proxies: %s", rnet.Auto)
}

// chain puts two proxies between a server and its clients, with rnet in
// between, and returns the address for the clients.
func chain(t *testing.T, server net.Listener) (addr string) {
	t.Helper()
	to := side{"tcp", server.Addr().String()}
	for _, kind := range []string{"rnet", "tcp"} {
		p := &proxy{from: side{kind, "127.0.0.1:0"}, to: to}
		ln, err := p.listen(io.Discard)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		var served sync.WaitGroup
		served.Go(func() { p.serve(ctx, ln) })
		t.Cleanup(func() {
			cancel()
			served.Wait() // ended by cancel
		})
		to = side{"rnet", ln.Addr().String()}
	}
	return to.addr
}

func listenTCP(t *testing.T) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	return ln
}

func TestAHalfCloseIsPassedOnAndTheAnswerStillComes(t *testing.T) {
	server := listenTCP(t)
	go echo(server)
	long := strings.Repeat("0123456789abcdef", 1<<16)
	echoed, err := exchange(t.Context(), chain(t, server), long)
	require.NoError(t, err)
	require.Equal(t, len(long), len(echoed))
	require.True(t, long == echoed, "the bytes differ")
}

func TestAnAnswerIsPassedOnWhileTheClientStillSends(t *testing.T) {
	server := listenTCP(t)
	conn, err := net.Dial("tcp", chain(t, server))
	require.NoError(t, err)
	defer conn.Close()
	peer, err := server.Accept()
	require.NoError(t, err)
	defer peer.Close()
	buf := make([]byte, 4)
	for range 10 {
		for _, way := range [][2]net.Conn{{conn, peer}, {peer, conn}} {
			_, err = way[0].Write([]byte("ping"))
			require.NoError(t, err)
			_, err = io.ReadFull(way[1], buf)
			require.NoError(t, err)
			require.Equal(t, "ping", string(buf))
		}
	}
}

func TestAResetIsPassedOn(t *testing.T) {
	server := listenTCP(t)
	conn, err := net.Dial("tcp", chain(t, server))
	require.NoError(t, err)
	defer conn.Close()
	peer, err := server.Accept()
	require.NoError(t, err)
	require.NoError(t, peer.(*net.TCPConn).SetLinger(0))
	require.NoError(t, peer.Close())
	_, err = conn.Read(make([]byte, 1)) // ended by the reset
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

func TestAServerThatIsNotThereResetsTheClient(t *testing.T) {
	server := listenTCP(t)
	addr := chain(t, server)
	require.NoError(t, server.Close())
	conn, err := net.Dial("tcp", addr)
	if err == nil { // the reset may come before the dial has returned
		defer conn.Close()
		_, err = conn.Read(make([]byte, 1)) // ended by the reset
	}
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

func TestFlagsSayWhichSideIsWhich(t *testing.T) {
	for args, want := range map[string]string{
		"-from udp:1.2.3.4:5 -to tcp:1.2.3.4:5": "neither tcp:ADDRESS nor rnet:ADDRESS",
		"-from tcp:127.0.0.1:0":                 "belong together",
	} {
		require.ErrorContains(t, run(t.Context(), strings.Fields(args), io.Discard), want)
	}
}
