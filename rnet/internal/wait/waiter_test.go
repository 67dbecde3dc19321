package wait

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWakeBeforeBeginIsForgotten(t *testing.T) {
	var w Waiter
	require.Equal(t, waiterIdle, w.wake())
	w.Begin()
	require.False(t, w.Ready())
}

func TestWakeAfterBeginIsSeen(t *testing.T) {
	var w Waiter
	w.Begin()
	require.Equal(t, waiterWaiting, w.wake())
	require.True(t, w.Ready())
	require.False(t, w.park(), "nobody may park who is ready")
	require.False(t, w.fallAsleep(), "nor sleep")
}

func TestWakerOfASleeperMustWakeTheChannel(t *testing.T) {
	var w Waiter
	w.Begin()
	require.True(t, w.fallAsleep())
	require.Equal(t, waiterAsleep, w.wake())
	require.Equal(t, waiterReady, w.wake(), "once is enough")
}

// still is a source from which nothing comes, and the channel of it.
type still struct{ woken chan struct{} }

func (*still) Poll() int                    { return 0 }
func (*still) Arm() error                   { return nil }
func (*still) Disarm()                      {}
func (*still) Failed() bool                 { return false }
func (s *still) Wake()                      { s.woken <- struct{}{} }
func newStill() *still                      { return &still{make(chan struct{}, 100)} }
func (l *Lock) initForTest(s *still)        { l.Init(s, s, Config{}) }
func (s *still) Wait(time.Time) error       { <-s.woken; return nil }
func (s *still) WaitThread(time.Time) error { <-s.woken; return nil }

func TestAParkedWaiterIsWithdrawnOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Lock // owned, as a lock is that was not started
		l.initForTest(newStill())
		var w Waiter
		for range 100 {
			w.Begin()
			go func() { l.Wake(&w); l.Wake(&w) }()
			l.Wait(&w)
			require.True(t, w.Ready())
			synctest.Wait()
			require.Zero(t, l.word.load().waiters())
		}
	})
}

func TestManyWakesEndOneWait(t *testing.T) {
	var l Lock
	l.initForTest(newStill())
	var w Waiter
	done, stop := make(chan struct{}), make(chan struct{})
	for range 4 {
		go func() {
			defer func() { done <- struct{}{} }()
			for {
				select {
				case <-stop:
					return
				default:
					l.Wake(&w)
					runtime.Gosched()
				}
			}
		}()
	}
	for range 10000 {
		w.Begin()
		l.Wait(&w) // ended by one of the wakers
		require.True(t, w.Ready())
	}
	close(stop)
	for range 4 {
		<-done
	}
	require.Zero(t, l.word.load().waiters())
	require.Empty(t, w.token, "a token left over would end the next wait")
}
