//go:build linux

package soft

import (
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/protocol"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/sys"
	"github.com/stretchr/testify/require"
)

// A region that is for one peer is given once. Who asks for it again is refused, and has it still. The
// region would write to a segment that is gone when the peer has hung up.
func TestAPeerThatAsksAgainForARegionThatItHasIsForgotten(t *testing.T) {
	s := newStranger(t)
	mr, err := s.v.pd.AllocMR(4096, verbs.AccessLocalWrite|verbs.AccessRemoteWrite, verbs.MROptions{OnePeer: true})
	require.NoError(t, err)
	key := mr.RKey()
	conn := s.pair()
	for _, good := range []bool{true, false} {
		s.say(conn, protocol.EncodeKey(protocol.KindKeyRequest, key))
		m, fds, err := readPacket(conn)
		require.NoError(t, err)
		sys.CloseFDs(fds...)
		require.Equal(t, good, m.Answer.Good)
	}
	require.Equal(t, key, s.v.q.in.seg.Header.Keys[0].Load())
	conn.Close()
	require.Eventually(t, func() bool { return s.v.q.state.Load() == stateErr }, 10*time.Second, time.Millisecond)
	require.NoError(t, s.v.q.Destroy())
	require.NoError(t, mr.Deregister())
}

// link is that of the victim to the stranger.
func (s *stranger) link() *socketLink {
	s.v.q.sendMu.Lock()
	defer s.v.q.sendMu.Unlock()
	return s.v.q.link.(*socketLink)
}

// There is a place for the key of each region that a peer has, and no more of them than fit.
func TestAPeerHasNoMoreRegionsThanThereArePlacesForKeys(t *testing.T) {
	s := newStranger(t)
	conn := s.pair()
	l := s.link()
	l.mu.Lock()
	l.used = protocol.KeySlots
	l.mu.Unlock()
	s.say(conn, protocol.EncodeKey(protocol.KindKeyRequest, s.v.mr.key))
	m, fds, err := readPacket(conn)
	require.NoError(t, err)
	require.Empty(t, fds)
	require.Equal(t, protocol.KeyAnswer{Key: s.v.mr.key}, m.Answer)
}

// Between the place for a key and the answer nothing is given yet: an MR that is not for peers of other
// processes, or has gone to the one that it was for, never is.
func TestAPeerMayNotWriteToWhatItIsNotGiven(t *testing.T) {
	s := newStranger(t)
	conn := s.pair()
	l := s.link()
	mr, err := s.v.pd.RegisterMR(make([]byte, 4096), verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	require.NoError(t, err)
	r := mr.(*registration).region
	r.told.mu.Lock()
	s.say(conn, protocol.EncodeKey(protocol.KindKeyRequest, r.key))
	require.Eventually(t, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.given) == 1
	}, 10*time.Second, time.Millisecond)
	early := l.in.granted(r.key)
	r.told.mu.Unlock()
	require.True(t, early == nil)
	m, fds, err := readPacket(conn)
	require.NoError(t, err)
	require.Empty(t, fds)
	require.False(t, m.Answer.Good)
	require.True(t, l.in.granted(r.key) == nil)
}
