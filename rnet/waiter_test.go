package rnet

import (
	"runtime"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func TestWakeBeforeBeginIsForgotten(t *testing.T) {
	var w waiter
	require.False(t, w.wake())
	w.begin()
	require.False(t, w.ready())
}

func TestWakeAfterBeginIsSeen(t *testing.T) {
	var w waiter
	w.begin()
	require.False(t, w.wake())
	require.True(t, w.ready())
	require.False(t, w.announce(), "nobody may park who is ready")
}

func TestWakeEndsBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w waiter
		w.begin()
		require.True(t, w.announce())
		go func() { w.wake() }()
		require.False(t, w.block())
		require.True(t, w.ready())
	})
}

func TestGrantGivesTheLead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w waiter
		w.begin()
		require.False(t, w.grant(), "it is not parked")
		require.True(t, w.announce())
		go func() { w.grant() }()
		require.True(t, w.block())
		require.False(t, w.ready())
		require.False(t, w.wake(), "it is awake")
		require.True(t, w.ready())
	})
}

func TestWakerOfASleeperMustWakeTheChannel(t *testing.T) {
	var w waiter
	w.begin()
	require.True(t, w.state.CompareAndSwap(waiterWaiting, waiterAsleep))
	require.True(t, w.wake())
	require.False(t, w.wake(), "once is enough")
}

func TestRetractTakesTheTokenThatIsOnItsWay(t *testing.T) {
	var w waiter
	for range 1000 {
		w.begin()
		require.True(t, w.announce())
		go w.wake()
		runtime.Gosched()
		w.retract()
		for !w.ready() { // ended by the wake
			runtime.Gosched()
		}
		require.Empty(t, w.ch, "a token left over would end the next wait")
	}
}

func TestManyWakesEndOneWait(t *testing.T) {
	var w waiter
	done := make(chan struct{})
	stop := make(chan struct{})
	for range 4 {
		go func() {
			defer func() { done <- struct{}{} }()
			for {
				select {
				case <-stop:
					return
				default:
					w.wake()
					runtime.Gosched()
				}
			}
		}()
	}
	for range 10000 {
		w.begin()
		if w.announce() {
			require.False(t, w.block()) // ended by one of the wakers
		}
		require.True(t, w.ready())
	}
	close(stop)
	for range 4 {
		<-done
	}
	require.Empty(t, w.ch)
}
