//go:build linux

package soft

import (
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/protocol"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/sys"
	"github.com/stretchr/testify/require"
)

// A hello that came before its QP was in RTR is taken by a pairing that is
// given up in the same moment.
func TestAHelloIsDroppedWithItsPairing(t *testing.T) {
	CheckLeaks(t)
	s := newStranger(t)
	require.NoError(t, s.v.q.reset())
	conn := s.dial()
	hello := s.hello()
	l := s.v.d.listener
	l.begin() // as a QP that waits to be dialed does
	defer l.end()
	s.say(conn, protocol.EncodeHello(hello), s.memfd(hello.Geometry.Size(), segmentSeals))
	require.Eventually(t, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.held) == 1
	}, 10*time.Second, time.Millisecond)
	p := newPairing(s.v.q, s.at)
	p.stop()
	p.start()
	s.hungUp(conn)
}

// What a pairing tells after RESET would give the former peer the segment that
// the next one is to write into.
func TestAFormerPeerDoesNotSeeTheNextSegment(t *testing.T) {
	s := newStranger(t)
	s.v.q.sendMu.Lock()
	former := s.v.q.pairing
	s.v.q.sendMu.Unlock()
	require.NoError(t, s.v.q.reset())
	conn := s.dial()
	require.ErrorIs(t, former.sayHello(conn), errOver)
}

// Nor does a former peer of this process, which would leave the next one no wake-up socket.
func TestAFormerPeerInThisProcessIsNotJoined(t *testing.T) {
	v, other := newVictim(t, false), newVictim(t, false)
	wait := func(one, another *victim) *pairing {
		require.NoError(t, one.q.reset())
		p := newPairing(one.q, protocol.Endpoint{GID: another.d.gid, QPN: another.q.num})
		one.q.sendMu.Lock()
		defer one.q.sendMu.Unlock()
		one.q.pairing = p
		return p
	}
	ours, theirs := wait(v, other), wait(other, v)
	require.NoError(t, other.q.reset())
	ours.joinSegment(theirs, &localLink{peer: other.q})
	fd, err := other.ch.wakeSocket(other.q.in)
	require.NoError(t, err)
	sys.CloseFDs(fd)
	require.NotNil(t, v.q.pairing, "it waits for the peer to come again")

	theirs = wait(other, v)
	wait(v, newVictim(t, false))
	ours.joinSegment(theirs, &localLink{peer: other.q})
	require.Nil(t, v.q.link, "it waits for another one")
	require.False(t, other.q.in.grants.local, "a peer of this process knows all keys")
}

// A QP whose peer is slow to dial looks whether that lives, over a connection that
// nobody needs when the peer has dialed.
func TestTheWatchEndsWithThePairing(t *testing.T) {
	s := newStranger(t)
	require.NoError(t, s.ln.SetDeadline(time.Now().Add(10*time.Second)))
	watch, err := s.ln.AcceptUnix()
	require.NoError(t, err)
	defer watch.Close()
	require.NoError(t, watch.SetDeadline(time.Now().Add(10*time.Second)))
	s.pair()
	s.hungUp(watch)
}
