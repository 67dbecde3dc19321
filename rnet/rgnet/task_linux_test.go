package rgnet

import (
	"testing"

	"github.com/panjf2000/gnet/v2"
	"github.com/stretchr/testify/require"
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
