package link

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs/soft"
)

// wireLike are the devices that have what is sent on its way when it is posted.
var wireLike = []string{soft.TestDeviceName, soft.TestNoImmName}

// What a link asks to find out whether its peer is there comes back, also
// when many ask at once.
func TestProbesComeBack(t *testing.T) {
	for _, device := range wireLike {
		t.Run(device, func(t *testing.T) {
			u, _ := pair(t, device, MinRing)
			l := u.link
			require.True(t, l.has.probes)
			for range 20 {
				before := l.probesDone.Load()
				wantsFrame, err := l.KeepAlive()
				require.NoError(t, err)
				require.False(t, wantsFrame)
				u.until("the probe is back", func() bool { return l.probesDone.Load() > before })
			}
			for range 3 {
				u.send.Lock()
				_, err := l.probe()
				u.send.Unlock()
				require.NoError(t, err)
			}
			u.until("all are back", func() bool { return !l.probeWanted.Load() && l.probed == l.probesDone.Load() })
		})
	}
}

// The mark of a frame is reached when the peer's device has it; without immediates, as on
// iWARP, it is a probe that tells.
func TestMarksAreReached(t *testing.T) {
	for _, device := range wireLike {
		t.Run(device, func(t *testing.T) {
			u, _ := pair(t, device, MinRing)
			u.send.Lock()
			u.link.Track()
			require.NoError(t, u.link.Send(Header{}, []byte("the end")))
			m, err := u.link.Tracked()
			u.send.Unlock()
			require.NoError(t, err)
			require.NotZero(t, m.Requests)
			require.Equal(t, u.link.Immediates(), m.Probes == 0)
			u.until("the mark is reached", func() bool { return u.link.Reached(m) })
		})
	}
}

// A probe that stays out for a whole period in which nothing else came is the end; one
// beside which something came is not.
func TestAPeerThatSaysNothingForAPeriodIsGivenUp(t *testing.T) {
	u, _ := pair(t, soft.TestDeviceName, MinRing)
	_, err := u.link.KeepAlive() // nobody polls: the probe stays out
	require.NoError(t, err)
	u.link.in.frames++ // as if a frame had come before it
	_, err = u.link.KeepAlive()
	require.NoError(t, err)
	_, err = u.link.KeepAlive()
	require.ErrorIs(t, err, syscall.ETIMEDOUT)
}

// On iWARP, where there are no immediates, a request is done when TCP has taken it, also for a
// machine that is dead.
func TestRequestsThatAreDoneAreALifeSignWithImmediatesOnly(t *testing.T) {
	for _, device := range wireLike {
		t.Run(device, func(t *testing.T) {
			u, _ := pair(t, device, MinRing)
			_, err := u.link.KeepAlive() // nobody polls: the probe stays out
			require.NoError(t, err)
			u.link.done.Add(1)
			_, err = u.link.KeepAlive()
			if u.link.Immediates() {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, syscall.ETIMEDOUT)
			}
		})
	}
}
