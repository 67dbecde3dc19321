package softcm

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/cmtest"
	"github.com/seed-b9b531af/ramjet/rcm/internal/handshake"
	"github.com/seed-b9b531af/ramjet/verbs/samehost"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// FuzzKeyExchange puts an attacker who has no key between a dialer and a listener that have
// the same: each of them takes the attacker for the other. The attacker sends anything, and
// what either has said. Neither lets the attacker in, and both end when the attacker does.
func FuzzKeyExchange(f *testing.F) {
	l, dir := keyedAt(f)
	var admitted atomic.Int32
	go func() { // ends with the listener
		for {
			r, err := l.Accept(context.Background())
			if err != nil {
				return
			}
			admitted.Add(1)
			r.Reject(nil)
		}
	}()
	arrived := make(chan *socket, 1)
	const name = "attacker"
	standIn(f, dir, name, func(s *socket) { arrived <- s })

	// The pieces of which a KEY is made: zeros, a nonce, the dialer's nonce, and what comes,
	// here the listener's nonce and its proof.
	const nonce, ofDialer, ofListener, proof = 1, 2, 3, 4
	ask := []byte{sendKey, 1, nonce, readOne}
	relay := []byte{sendSaid, 1, 0, 0, readOne, sendSaid | toDialer, 0, 0, 0}
	for _, parts := range [][][]byte{
		{relay},
		{relay, {sendSaid, 1, 0, 0, sendOther, 0}},
		{{sendKey, 1, ofDialer, readOne, sendKey | toDialer, 2, ofListener, proof}}, // by hand
		{ask, {sendKey, 1, proof, sendOther, 0}},                                    // the listener's own
		{ask, {sendKey, 1, proof, sendOther, 1}},
		{ask, {sendKey, 2, ofListener, proof, sendOther, 0}},
		{ask, {sendKey, 1, 0, sendOther, 0}},
		{ask, {sendKey, 1, nonce, sendOther, 1}},
		{ask, {forge, nonce, ofListener, 1, sendKey, 1, proof + 1, sendOther, 0}},
		{ask, {sendOther, 0}},
		{ask, {sendOther, 1}},
		{{sendKey | toDialer, 2, ofDialer, ofDialer}},
		{{forge, ofDialer, nonce, 2, sendKey | toDialer, 2, nonce, ofDialer + 1}},
		{{sendKey | toDialer, 0}}, // the listener has none
		{{sendKey | toDialer, 1, nonce}},
		{{sendOther, 0, readOne}}, {{sendOther, 1}}, {{sendOther, 3}}, {{sendOther | toDialer, 2}}, {{sendOther | toDialer, 3}},
		{{sendBytes, 4, 'R', 'J', 'C', 'M', sendBytes | toDialer, 0}},
	} {
		for _, how := range []byte{0, dialerKnows, dialerGivesUp} {
			f.Add(how, bytes.Join(parts, nil))
		}
	}
	f.Fuzz(func(t *testing.T, how byte, script []byte) {
		if len(script) > 200 {
			return // long scripts find nothing that short ones do not
		}
		dialer := dialOnce(t, dir, name)
		a := &attacker{
			with:    [2]*socket{dialOnce(t, dir, entriesFor(l.addr)...), cmtest.Await(t, arrived)},
			request: *l.request(),
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		failed := make(chan error, 1)
		go func() {
			_, err := settle(ctx, testKey, []candidate{{sock: dialer, known: how&dialerKnows != 0}})
			dialer.Close()
			failed <- err
		}()
		a.owed[1] = 1 // the dialer's nonce
		a.receive(1)
		a.play(script)
		if how&dialerGivesUp != 0 {
			cancel()
		}
		a.end(t)
		err := cmtest.Await(t, failed) // ended by the above
		if err == nil {
			require.NotZero(t, how&dialerKnows, "the dialer takes a listener that has not shown its key")
			require.True(t, a.hasNone, "the dialer takes a listener that has not said that it has no key")
		}
		require.False(t, dialer.proven, "the dialer takes the attacker for one who has the key")
		require.Zero(t, admitted.Load(), "the listener lets the attacker in")
		for _, said := range a.said {
			require.NotContains(t, string(said), string(testKey))
		}
	})
}

// How an input of FuzzKeyExchange is run, in bits.
const (
	dialerKnows   = 1 // the listener's user, so that it needs no key
	dialerGivesUp = 2 // before the attacker hangs up
)

// What a script has the attacker do. One bit says with whom.
const (
	sendBytes = iota // count, bytes
	sendKey          // count, pieces
	sendSaid         // of whom, place, what the byte there is changed by
	sendOther        // another message
	readOne
	forge // dialer's nonce, listener's nonce, a bit for the side, one for the socket: a new piece
	attackerDoes

	toDialer = 8
)

// attacker is one who has no key. What they do is in a script.
type attacker struct {
	with    [2]*socket // the listener, the dialer
	request handshake.Message
	owed    [2]int    // answers to what was sent: each gets one, or an end
	said    [2][]byte // their last packets
	pieces  [][]byte  // that a KEY is made of
	hasNone bool      // the first word to the dialer was that there is no key
	spoken  bool      // to the dialer
}

func (a *attacker) play(script []byte) {
	next := func() byte {
		if len(script) == 0 {
			return 0
		}
		b := script[0]
		script = script[1:]
		return b
	}
	nonce := make([]byte, nonceSize)
	nonce[0] = 1
	// The dialer's nonce is there already.
	a.pieces = append([][]byte{make([]byte, nonceSize), nonce}, a.pieces...)
	piece := func() []byte { return a.pieces[int(next())%len(a.pieces)] }
	for len(script) > 0 {
		op := next()
		side := int(op / toDialer % 2)
		switch op % toDialer % attackerDoes {
		case sendBytes:
			n := min(int(next()), len(script))
			a.send(side, script[:n])
			script = script[n:]
		case sendKey:
			var parts [][]byte
			for range next() % 4 {
				parts = append(parts, piece())
			}
			a.send(side, keyMessage(parts...).AppendTo(nil))
		case sendSaid:
			packet := append([]byte(nil), a.said[next()%2]...)
			if at, by := int(next()), next(); at < len(packet) {
				packet[at] ^= by
			}
			a.send(side, packet)
		case sendOther:
			others := []handshake.Message{
				a.request,
				{Kind: handshake.KindReply, From: acceptorEnd},
				{Kind: handshake.KindReject, Reason: rcm.ReasonPeerDenied},
				{Kind: handshake.KindReady},
			}
			a.send(side, others[int(next())%len(others)].AppendTo(nil))
		case readOne:
			if a.owed[side] > 0 {
				a.receive(side)
			}
		case forge:
			e := exchange{dialer: [nonceSize]byte(piece()), listener: [nonceSize]byte(piece()), at: a.with[0].To()}
			how, who := next(), listenerProves
			if how&1 != 0 {
				who = dialerProves
			}
			if how&2 != 0 {
				e.at = a.with[1].at
			}
			a.pieces = append(a.pieces, e.proof(nil, who))
		}
	}
}

// send may find that the other has ended.
func (a *attacker) send(side int, packet []byte) {
	if len(packet) == 0 {
		a.with[side].Write(packet) // which may be overlooked, as it looks like the end
		return
	}
	if side == 1 && !a.spoken {
		m, err := handshake.Parse(packet)
		a.spoken, a.hasNone = true, err == nil && m.Kind == handshake.KindKey && len(m.Private) == 0
	}
	a.with[side].Write(packet)
	a.owed[side]++
}

// receive waits for a packet, of which the parts become pieces. The wait ends with that, or
// with the other's end.
func (a *attacker) receive(side int) {
	a.owed[side]--
	var b [handshake.MaxMessage]byte
	n, err := a.with[side].Read(b[:])
	if err != nil {
		return
	}
	a.said[side] = b[:n]
	m, err := handshake.Parse(a.said[side])
	for err == nil && m.Kind == handshake.KindKey && len(m.Private) >= nonceSize {
		a.pieces = append(a.pieces, m.Private[:nonceSize])
		m.Private = m.Private[nonceSize:]
	}
}

// end says no more, and waits until both have ended, too.
func (a *attacker) end(t *testing.T) {
	for _, s := range a.with {
		raw, err := s.SyscallConn()
		require.NoError(t, err)
		raw.Control(func(fd uintptr) { unix.Shutdown(int(fd), unix.SHUT_WR) })
	}
	for _, s := range a.with {
		var err error
		for err == nil { // ends with the other's close, or the deadline
			_, err = s.receive()
			if errors.Is(err, rcm.ErrMalformed) {
				err = nil
			}
		}
		require.ErrorIs(t, err, errHungUp, "the other goes on")
		s.Close()
	}
}

// dialOnce is dialIn, and the caller closes. A queue may be full of those who are gone.
func dialOnce(t testing.TB, dir *samehost.Directory, names ...string) *socket {
	for deadline := time.Now().Add(cmtest.Timeout); ; {
		for _, place := range dir.Places() {
			c, err := dir.DialIn(unix.SOCK_SEQPACKET, everybody, place, names...)
			if err == nil {
				c.SetDeadline(deadline)
				return &socket{Conn: c, met: true}
			}
			if !errors.Is(err, unix.EAGAIN) || time.Now().After(deadline) {
				require.NoError(t, err)
			}
		}
	}
}
