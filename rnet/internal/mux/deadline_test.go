package mux

import (
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// newHalf returns a stream of which only the deadlines are used.
func newHalf() *Stream {
	st := &Stream{m: new(Mux)}
	st.recv.st, st.send.st = st, st
	return st
}

func TestDeadlineExpiresWhenItIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newHalf()
		require.False(t, c.recv.end.set(time.Now().Add(time.Second), &c.recv))
		time.Sleep(time.Second - 1)
		synctest.Wait()
		require.False(t, c.recv.end.expired())
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.True(t, c.recv.end.expired())
		require.ErrorIs(t, c.recv.readable(), os.ErrDeadlineExceeded)
	})
}

func TestPastDeadlineHasExpiredAtOnce(t *testing.T) {
	c := newHalf()
	require.True(t, c.send.end.set(time.Now().Add(-time.Second), &c.send))
	require.ErrorIs(t, c.send.writable(), os.ErrDeadlineExceeded)
	require.NoError(t, c.recv.readable())
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
					c.recv.end.set(at, &c.recv)
				}
				if tc.end == 0 {
					time.Sleep(time.Hour)
					synctest.Wait()
					require.False(t, c.recv.end.expired())
					return
				}
				time.Sleep(time.Until(start.Add(tc.end)) - 1)
				synctest.Wait()
				require.False(t, c.recv.end.expired())
				time.Sleep(time.Nanosecond)
				synctest.Wait()
				require.True(t, c.recv.end.expired())
			})
		})
	}
}

func TestStoppedDeadlineStaysQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newHalf()
		c.recv.end.set(time.Now().Add(time.Second), &c.recv)
		c.recv.end.stop()
		require.False(t, c.recv.end.set(time.Now().Add(-time.Second), &c.recv))
		time.Sleep(time.Minute)
		synctest.Wait()
		require.False(t, c.recv.end.expired())
	})
}

func TestADeadlineThatWasNeverSetTakesNoMemory(t *testing.T) {
	var d deadline
	require.Zero(t, testing.AllocsPerRun(100, func() {
		d.timed.Store(nil)
		d.set(time.Time{}, nil)
		d.stop()
		if d.set(time.Now().Add(-time.Second), nil) || d.expired() {
			panic("it was stopped")
		}
		d.stop()
	}))
}

func TestMovingADeadlineAllocatesNothing(t *testing.T) {
	c := newHalf()
	later := time.Now().Add(time.Hour)
	c.recv.end.set(later, &c.recv)
	past := time.Now().Add(-time.Hour)
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		later = later.Add(time.Millisecond)
		c.recv.end.set(later, &c.recv)
		c.recv.end.set(past, &c.recv)
		c.recv.end.set(time.Time{}, &c.recv)
		c.recv.end.set(later.Add(-time.Minute), &c.recv)
	}))
	c.recv.end.stop()
}
