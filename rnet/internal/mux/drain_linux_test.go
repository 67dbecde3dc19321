package mux

import (
	"errors"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// What the dialing side has opened before it knows that it shall open no more, the other
// side gets before the answer, and nothing after it.
func TestEachStreamComesBeforeTheAnswerToGoAway(t *testing.T) {
	for _, k := range []carrier{overSoft, overNarrow, {device: wireLike[0]}} {
		for range 10 {
			dialed, accepted := k.pair(t)
			var opened atomic.Int64
			var work sync.WaitGroup
			begun := make(chan struct{}, 4)
			for range 4 {
				work.Go(func() {
					for range mostStreams / 4 {
						_, err := dialed.open()
						if errors.Is(err, ErrNoSlot) {
							runtime.Gosched()
							continue
						}
						if err != nil {
							require.ErrorIs(t, err, net.ErrClosed)
							break
						}
						opened.Add(1)
						select {
						case begun <- struct{}{}:
						default:
						}
					}
				})
			}
			<-begun
			accepted.Drain()
			<-accepted.left // ended by the answer
			came := len(accepted.opened)
			work.Wait()
			require.EqualValues(t, opened.Load(), came)
			require.Len(t, accepted.opened, came)
			_, err := dialed.open()
			require.ErrorIs(t, err, net.ErrClosed)
			require.NoError(t, accepted.Err(), "the session has ended with streams on it")
			dialed.Fail(net.ErrClosed)
			<-accepted.Done()
		}
	}
}

// A session without streams does not end before the answer, but then.
func TestADrainedSessionWithoutStreamsEndsWithTheAnswer(t *testing.T) {
	dialed, accepted := overSoft.pair(t)
	st, err := dialed.open()
	require.NoError(t, err)
	far := <-accepted.opened
	accepted.Drain()
	require.NoError(t, st.Close(-1))
	require.NoError(t, far.Close(-1))
	<-accepted.Done()
	require.ErrorIs(t, accepted.Err(), ErrIdle)
}

// A peer that does not answer keeps it no longer than Retire.
func TestRetireEndsADrainThatHasNoAnswer(t *testing.T) {
	_, accepted := overSoft.pair(t)
	accepted.draining.Store(true) // as by Drain, whose GO_AWAY the peer does not answer
	accepted.goingAway.Store(true)
	accepted.Left()
	require.NoError(t, accepted.Err())
	accepted.Retire()
	<-accepted.Done()
	require.ErrorIs(t, accepted.Err(), ErrIdle)
}
