package rnet

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/verbs/samehost"
)

// requestOf returns the request with which a dial to address begins. Nobody may
// listen there.
func requestOf(t *testing.T, address string) []byte {
	t.Helper()
	ln, err := samehost.Listen(samehost.ListenConfig{Type: unix.SOCK_SEQPACKET, Name: "@ramjet/rcm1/" + address, Backlog: 8})
	require.NoError(t, err)
	dialed := hang.Start(t, func() {
		_, err := (&Dialer{Transport: Soft, Dedicated: true}).Dial("tcp", address)
		require.Error(t, err)
	})
	c, err := ln.Accept()
	require.NoError(t, err)
	request := make([]byte, 1024)
	n, err := c.Read(request)
	require.NoError(t, err)
	ln.Close()
	c.Close()
	dialed()
	return request[:n]
}

// Peers that ask for sessions and then say nothing, of several listeners, hold up
// neither each other nor those who have something to say.
func TestSilentPeersKeepNobodyWaiting(t *testing.T) {
	for range 2 {
		address := namedPort(t, "tcp", "127.0.0.1")
		request := requestOf(t, address)
		ln, err := (&ListenConfig{Transport: Soft}).Listen(t.Context(), "tcp", address)
		require.NoError(t, err)
		defer ln.Close()
		for range 2 * maxSetUps {
			c, err := samehost.Dial(unix.SOCK_SEQPACKET, nil, "@ramjet/rcm1/"+address)
			require.NoError(t, err)
			defer c.Close()
			_, err = c.Write(request)
			require.NoError(t, err)
		}
	}
	hang.Eventually(t, "as many set-ups as there are places wait for their peers", func() bool {
		accepting.mu.Lock()
		defer accepting.mu.Unlock()
		return accepting.gate.Inside()+len(accepting.slow) >= maxSetUps
	})
	ln := carrier{}.listen(t)
	address := ln.Addr().String()
	negatives.Forget(address)
	for range 3 {
		// Ten times as long, it waits for half of what a silent peer is given.
		c, err := (&Dialer{Dedicated: true, HeadStart: setUpTime / 20}).Dial("tcp", address)
		require.NoError(t, err)
		defer c.Close()
		require.IsType(t, (*Conn)(nil), c, "%+v", Explain(address))
	}
	accepting.mu.Lock()
	slow := len(accepting.slow)
	accepting.mu.Unlock()
	require.LessOrEqual(t, slow, maxSlow)
}
