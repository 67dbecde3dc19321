package rgnet

import (
	"testing"

	"github.com/panjf2000/gnet/v2"
	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/rnet/internal/mux"
)

// The connection has been closed, so that nothing but the way of the tasks is
// measured.
func TestTasksOfConnectionsAllocateNothing(t *testing.T) {
	l := &eventLoop{}
	c := &conn{l: l, state: connEnded}
	done := 0
	callback := func(gnet.Conn, error) error {
		done++
		return nil
	}
	p := make([]byte, 64)
	bs := [][]byte{p, p}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		c.AsyncWrite(p, callback)
		c.AsyncWritev(bs, callback)
		c.Wake(callback)
		c.CloseWithCallback(callback)
		l.work()
	}))
	require.Equal(t, 4*101, done)
}

func TestALoopKeepsNoMemoryOfABurstOfTasks(t *testing.T) {
	l := &eventLoop{}
	c := &conn{l: l, state: connEnded}
	for range 2 * keptTasks {
		c.Wake(nil)
	}
	require.Equal(t, 2*keptTasks, l.work())
	require.LessOrEqual(t, cap(l.tasks)+cap(l.spare), 2*keptTasks)
}

// A task may be done before the Wake for it comes, which then ends nothing. The loop does not sleep after it:
// a second Wake would find the loop awake.
func TestALoopDoesNotSleepBehindAWakeThatHasNothingToEnd(t *testing.T) {
	l := &eventLoop{poller: new(mux.Poller)}
	l.rest.Store(sleeping)
	require.False(t, l.hasWork())
	l.Wake()
	require.True(t, l.hasWork())
}
