package rnet

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"syscall"
	"testing"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/internal/leak"
	"github.com/seed-b9b531af/ramjet/rnet/internal/traffic"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// One address serves peers of both kinds at once.
func TestPlainTCPPeersAreServedBesideOthers(t *testing.T) {
	leak.Check(t)
	ln := carrier{}.listen(t)
	server := &http.Server{Handler: http.HandlerFunc(echoChecked)}
	serving := hang.Start(t, func() { assert.ErrorIs(t, server.Serve(ln), http.ErrServerClosed) })
	url := "http://" + ln.Addr().String()
	plain := &http.Transport{DialContext: new(net.Dialer).DialContext}
	soft := &http.Transport{DialContext: (&Dialer{Transport: Soft}).DialContext}
	automatic := &http.Transport{DialContext: new(Dialer).DialContext}
	for round := range 20 {
		for _, transport := range []*http.Transport{plain, soft, automatic} {
			for size := range 5 {
				body := traffic.Bytes(uint64(round), size*10000)
				require.NoError(t, requestChecked(&http.Client{Transport: transport}, url, body))
			}
		}
	}
	for _, transport := range []*http.Transport{plain, soft, automatic} {
		transport.CloseIdleConnections()
	}
	require.NoError(t, server.Close())
	serving()
}

func TestAcceptGivesEachPeerItsKind(t *testing.T) {
	ln := carrier{}.listen(t)
	for range 5 {
		c, err := net.Dial("tcp", ln.Addr().String())
		require.NoError(t, err)
		s, err := ln.Accept()
		require.NoError(t, err)
		require.IsType(t, (*net.TCPConn)(nil), s)
		fmt.Fprint(c, "plain")
		c.Close()
		got, err := io.ReadAll(s)
		require.NoError(t, err)
		require.Equal(t, "plain", string(got))
		s.Close()

		_, s = overSoft.connect(t, ln)
		require.IsType(t, (*Conn)(nil), s)
	}
}

func TestDialReachesAPlainTCPServer(t *testing.T) {
	leak.Check(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := &http.Server{Handler: http.HandlerFunc(echoChecked)}
	serving := hang.Start(t, func() { assert.ErrorIs(t, server.Serve(ln), http.ErrServerClosed) })
	transport := &http.Transport{DialContext: new(Dialer).DialContext, DisableKeepAlives: true}
	for i := range 20 {
		require.NoError(t, requestChecked(&http.Client{Transport: transport}, "http://"+ln.Addr().String(), traffic.Bytes(1, i*1000)))
	}
	told := Explain(ln.Addr().String())
	require.NotEmpty(t, told)
	require.Equal(t, TCP, told[len(told)-1].Transport)
	require.NoError(t, server.Close())
	serving()
}

func TestListenerThatForbidsTCPResetsIt(t *testing.T) {
	ln := overSoft.listen(t)
	c, err := net.Dial("tcp", ln.Addr().String())
	if err == nil { // it may also come before connect has returned
		defer c.Close()
		_, err = c.Read(make([]byte, 1))
	}
	require.ErrorIs(t, err, syscall.ECONNRESET)
	overSoft.connect(t, ln)
}

func TestTCPPeerIsNotStarvedByStreams(t *testing.T) {
	ln := carrier{}.listen(t)
	plain, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	defer plain.Close()
	const streams = 500
	for range streams {
		c, err := overSoft.dialer().Dial("tcp", ln.Addr().String())
		require.NoError(t, err)
		defer c.Close()
	}
	hang.Eventually(t, "all streams wait", func() bool {
		ln.(*Listener).mu.Lock()
		defer ln.(*Listener).mu.Unlock()
		return len(ln.(*Listener).queue) == streams
	})
	served := 0
	for i := range streams + 1 {
		s, err := ln.Accept()
		require.NoError(t, err)
		defer s.Close()
		if _, ok := s.(*net.TCPConn); ok {
			served = i
		}
	}
	require.Less(t, served, streams, "not the last")
}
