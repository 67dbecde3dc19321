package rnet

import (
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// newHalf returns a Conn of which only the deadlines are used.
func newHalf() *Conn { return &Conn{s: new(session)} }

func TestDeadlineExpiresWhenItIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newHalf()
		require.False(t, c.recvEnd.set(time.Now().Add(time.Second), c))
		time.Sleep(time.Second - 1)
		synctest.Wait()
		require.False(t, c.recvEnd.expired.Load())
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.True(t, c.recvEnd.expired.Load())
		require.ErrorIs(t, c.readable(), os.ErrDeadlineExceeded)
	})
}

func TestPastDeadlineHasExpiredAtOnce(t *testing.T) {
	c := newHalf()
	require.True(t, c.sendEnd.set(time.Now().Add(-time.Second), c))
	require.ErrorIs(t, c.writable(), os.ErrDeadlineExceeded)
	require.NoError(t, c.readable())
}

func TestDeadlineMoves(t *testing.T) {
	never := time.Time{}
	for _, tc := range []struct {
		name  string
		moves []time.Duration // from the start, one each second; 0 removes it
		end   time.Duration   // when it expires, 0 if never
	}{
		{"later", []time.Duration{10 * time.Second, 20 * time.Second}, 20 * time.Second},
		{"earlier", []time.Duration{20 * time.Second, 10 * time.Second}, 10 * time.Second},
		{"later and earlier", []time.Duration{10 * time.Second, 30 * time.Second, 20 * time.Second}, 20 * time.Second},
		{"away", []time.Duration{10 * time.Second, 0}, 0},
		{"away and back", []time.Duration{10 * time.Second, 0, 10 * time.Second}, 10 * time.Second},
		{"away and back later", []time.Duration{10 * time.Second, 0, 30 * time.Second}, 30 * time.Second},
		{"on and on", []time.Duration{2 * time.Second, 3 * time.Second, 4 * time.Second, 5 * time.Second}, 5 * time.Second},
		{"after it expired", []time.Duration{time.Second, time.Second, 9 * time.Second}, 9 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newHalf()
				start := time.Now()
				for i, m := range tc.moves {
					if i > 0 {
						time.Sleep(time.Second)
					}
					at := never
					if m > 0 {
						at = start.Add(m)
					}
					c.recvEnd.set(at, c)
				}
				if tc.end == 0 {
					time.Sleep(time.Hour)
					synctest.Wait()
					require.False(t, c.recvEnd.expired.Load())
					return
				}
				time.Sleep(time.Until(start.Add(tc.end)) - 1)
				synctest.Wait()
				require.False(t, c.recvEnd.expired.Load())
				time.Sleep(time.Nanosecond)
				synctest.Wait()
				require.True(t, c.recvEnd.expired.Load())
			})
		})
	}
}

func TestStoppedDeadlineStaysQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newHalf()
		c.recvEnd.set(time.Now().Add(time.Second), c)
		c.recvEnd.stop()
		require.False(t, c.recvEnd.set(time.Now().Add(-time.Second), c))
		time.Sleep(time.Minute)
		synctest.Wait()
		require.False(t, c.recvEnd.expired.Load())
	})
}

func TestMovingADeadlineAllocatesNothing(t *testing.T) {
	c := newHalf()
	later := time.Now().Add(time.Hour)
	c.recvEnd.set(later, c)
	past := time.Now().Add(-time.Hour)
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		later = later.Add(time.Millisecond)
		c.recvEnd.set(later, c)
		c.recvEnd.set(past, c)
		c.recvEnd.set(time.Time{}, c)
		c.recvEnd.set(later.Add(-time.Minute), c)
	}))
	c.recvEnd.stop()
}

func TestDeadlineAfterOneThatIsCenturiesAwayPasses(t *testing.T) {
	dialed, _ := overSoft.pair(t)
	require.NoError(t, dialed.SetReadDeadline(time.Unix(1<<36, 0)))
	require.NoError(t, dialed.SetReadDeadline(time.Now().Add(time.Millisecond)))
	start(t, func() {
		_, err := dialed.Read(make([]byte, 1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	})()
}
