package verbstest

import (
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

// iwarp reports whether the device speaks RDMA over TCP (RFC 5040 and 5041),
// which differs from what the InfiniBand Architecture Specification says:
//
//   - A SEND or WRITE completes when TCP has taken it, not when it has arrived
//     (RFC 5040, section 5.1). What the peer refuses is a connection that ends,
//     not a completion with an error.
//   - There is no RNR: a message that finds no receive ends the connection
//     (RFC 5041, section 7.1).
//   - There are no immediates and no atomics, which capability bits say.
func (s *side) iwarp() bool { return s.ctx.Attr().Transport == verbs.TransportIWARP }

// requireRNR skips the test where messages do not wait for receives.
func (s *side) requireRNR() {
	s.t.Helper()
	if s.iwarp() {
		s.t.Skip("iWARP has no RNR: a message that finds no receive ends the connection")
	}
}

// requireAcks skips the test where completions say nothing of the peer.
func (s *side) requireAcks() {
	s.t.Helper()
	if s.iwarp() {
		s.t.Skip("on iWARP a request completes when TCP has taken it")
	}
}

// placed returns when what s has written is in the memory of peer. On iWARP a
// completion does not say that, a later SEND does.
func (s *side) placed(peer *side) {
	s.t.Helper()
	if !s.iwarp() {
		return
	}
	peer.receive(verbs.RecvWR{}) // one more for one more message
	s.post(verbs.SendWR{Opcode: verbs.OpSend})
	require.Equal(s.t, verbs.WCSuccess, peer.poll(peer.recv, 1)[0].Status)
}

// refused waits for the end of a request that the peer refuses: with status,
// or on iWARP with any or without a completion, but with the connection.
func (s *side) refused(id uint64, status verbs.WCStatus) {
	s.t.Helper()
	if !s.iwarp() {
		s.sent(id, status)
		return
	}
	s.awaitState(verbs.QPStateErr)
	var wcs [4]verbs.WC
	n, err := s.send.Poll(wcs[:])
	require.NoError(s.t, err)
	require.LessOrEqual(s.t, n, 1)
	for _, wc := range wcs[:n] {
		require.Equal(s.t, id, wc.ID)
	}
}

// failedLocally waits for a request that our own device refuses. siw does not
// say for what reason.
func (s *side) failedLocally(id uint64, status verbs.WCStatus) {
	s.t.Helper()
	if !s.iwarp() {
		s.sent(id, status)
		return
	}
	wc := s.poll(s.send, 1)[0]
	require.Equal(s.t, id, wc.ID)
	require.NotEqual(s.t, verbs.WCSuccess, wc.Status)
}

// credits are the receives that a sender may use. nil, where messages wait
// for receives, is any number.
type credits chan struct{}

func (s *side) credits(n int) credits {
	if !s.iwarp() {
		return nil
	}
	c := make(credits, 1<<16)
	c.add(n)
	return c
}

func (c credits) add(n int) {
	if c == nil {
		return
	}
	for range n {
		c <- struct{}{} // never waits: there is room for all receives
	}
}

// take waits for a receive that may be used, and reports false if none comes.
func (c credits) take() bool {
	if c == nil {
		return true
	}
	select { // ends when the receiving side posts a receive, or is out of patience
	case <-c:
		return true
	case <-time.After(patience):
		return false
	}
}

// sendOp is SEND with an immediate, or without on a device that has none.
func (s *side) sendOp() verbs.Opcode {
	if s.ctx.Attr().Caps.Has(verbs.CapSendWithImm) {
		return verbs.OpSendWithImm
	}
	return verbs.OpSend
}

// requireImm checks the immediate of a message that was sent with sendOp.
func (s *side) requireImm(want uint32, wc verbs.WC) {
	s.t.Helper()
	if s.sendOp() == verbs.OpSendWithImm {
		require.Equal(s.t, want, wc.Imm)
	}
}
