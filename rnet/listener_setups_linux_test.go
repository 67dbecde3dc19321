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
	ln, err := samehost.Listen(samehost.ListenConfig{Type: unix.SOCK_SEQPACKET, Name: "@ramjet/rcm2/" + address, Backlog: 8})
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
	const most = maxSetUps
	accepting.most = func() int { return most }
	t.Cleanup(func() { accepting.most = mostWaitingNow })
	for range 2 {
		address := closedAddress(t)
		request := requestOf(t, address)
		ln, err := (&ListenConfig{Transport: Soft}).Listen(t.Context(), "tcp", address)
		require.NoError(t, err)
		defer ln.Close()
		for range maxSetUps {
			c, err := samehost.Dial(unix.SOCK_SEQPACKET, nil, "@ramjet/rcm2/"+address)
			require.NoError(t, err)
			defer c.Close()
			_, err = c.Write(request)
			require.NoError(t, err)
		}
	}
	hang.Eventually(t, "as many as may wait for their peers", func() bool {
		return waitingSetUps() >= most
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
	require.LessOrEqual(t, waitingSetUps(), most+maxSetUps)
}

// What gives way is no session that the dialing side may use already.
func TestSetUpThatGivesWayWasNotGreeted(t *testing.T) {
	accepting.most = func() int { return 1 }
	t.Cleanup(func() { accepting.most = mostWaitingNow })
	ln := carrier{}.listen(t)
	p := newRawPeer(t)
	defer p.close()
	h := p.hello()
	require.NoError(t, p.dial(ln.Addr().String(), h.Marshal()))
	hang.Eventually(t, "the listener waits for the first message", func() bool { return waitingSetUps() == 1 })
	c, err := (&Dialer{Transport: Soft, Dedicated: true}).Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	received := 0
	hang.Eventually(t, "end of the set-up", func() bool {
		received += p.receive()
		select {
		case <-p.conn.Disconnected():
			return true
		default:
			return false
		}
	})
	require.Zero(t, received)
}

func waitingSetUps() int {
	accepting.mu.Lock()
	defer accepting.mu.Unlock()
	return len(accepting.waiting)
}
