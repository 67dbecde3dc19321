package rnet

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// overWireLike are the carriers whose devices have what is sent on its way
// when it is posted.
var overWireLike = orKernel(overStage, overNotices)

// What a session asks to find out whether its peer is there comes back, also
// when many ask at once.
func TestProbesComeBack(t *testing.T) {
	over(t, overWireLike, func(t *testing.T, k carrier) {
		dialed, accepted := k.streams(t)
		for _, s := range []*session{dialed.s, accepted.s} {
			require.True(t, s.probes)
			for range 20 {
				before := s.probesDone.Load()
				s.keepAlive()
				eventually(t, "the probe is back", func() bool {
					s.pollLock.Look()
					return s.probesDone.Load() > before
				})
			}
			for range 3 {
				s.txMu.Lock()
				_, err := s.probe()
				s.txMu.Unlock()
				require.NoError(t, err)
			}
			eventually(t, "all are back", func() bool {
				s.pollLock.Look()
				s.txMu.Lock()
				defer s.txMu.Unlock()
				return !s.probeWanted.Load() && s.probed == s.probesDone.Load()
			})
		}
	})
}

// On a network Close returns when the peer's device has the end of the stream.
// On iWARP it is a probe that tells.
func TestCloseWaitsForTheProbe(t *testing.T) {
	over(t, overWireLike, func(t *testing.T, k carrier) {
		var dialed *Conn
		for begun := time.Now().Add(-flushTime); time.Since(begun) >= flushTime; { // so busy a machine that Close may have given up
			dialed, _ = k.streams(t)
			_, err := dialed.Write(randomBytes(1, 100<<10))
			require.NoError(t, err)
			begun = time.Now()
			require.NoError(t, dialed.Close())
		}
		s := dialed.s
		s.txMu.Lock()
		defer s.txMu.Unlock()
		require.NotZero(t, dialed.finAt.wrs)
		require.Equal(t, s.notices != nil, dialed.finAt.probes > 0)
		require.True(t, s.reached(dialed.finAt))
	})
}

// A peer that does not say that it answers probes gets none.
func TestHelloTellsOfProbes(t *testing.T) {
	h := goodHello()
	h.flags = helloProbes
	b := h.marshal()
	b[7] = 0xff // what we do not know
	got, err := parseHello(b)
	require.NoError(t, err)
	require.Equal(t, h, got)
}
