package eventqueue

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
)

func event(number int) verbs.DriverEvent {
	return verbs.DriverEvent{Type: verbs.EventQPFatal, QPN: uint32(number)}
}

func TestEventsComeInOrderAndAfterClose(t *testing.T) {
	var q Queue
	for n := range 5 {
		require.True(t, q.Raise(event(n)))
	}
	q.Close()
	for n := range 5 {
		ev, err := q.Next()
		require.NoError(t, err)
		require.Equal(t, event(n), ev)
	}
	_, err := q.Next()
	require.ErrorIs(t, err, verbs.ErrClosed)
}

func TestTheNewestEventsAreLostWhenNobodyFetchesThem(t *testing.T) {
	var q Queue
	for n := range Backlog {
		require.True(t, q.Raise(event(n)))
	}
	require.False(t, q.Raise(event(Backlog)))
	require.Equal(t, Backlog, q.Len())
	ev, err := q.Next()
	require.NoError(t, err)
	require.Equal(t, event(0), ev)
	require.True(t, q.Raise(event(Backlog)))
}

func TestEachEventWakesOneThatWaitsAndCloseAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q Queue
		got, ended := make(chan uint32, 3), make(chan error, 3)
		for range 3 {
			go func() {
				ev, err := q.Next()
				for ; err == nil; ev, err = q.Next() {
					got <- ev.QPN
				}
				ended <- err
			}()
		}
		synctest.Wait()
		for n := range 3 {
			require.True(t, q.Raise(event(n)))
		}
		require.ElementsMatch(t, []uint32{0, 1, 2}, []uint32{<-got, <-got, <-got})
		synctest.Wait()
		q.Close()
		for range 3 {
			require.ErrorIs(t, <-ended, verbs.ErrClosed)
		}
	})
}

func TestAnEmptyQueueHasNoMemory(t *testing.T) {
	var q Queue
	for range 2 {
		q.Raise(event(1))
		_, err := q.Next()
		require.NoError(t, err)
	}
	require.Nil(t, q.waiting)
}
