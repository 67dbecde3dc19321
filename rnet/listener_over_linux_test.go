package rnet

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// The last stream and the end of a listener that hands over come while two calls of Accept are on their way
// to sleep, for which there is one token: who takes it wakes the other.
func TestTheLastStreamAndTheEndOfAListenerWakeTwo(t *testing.T) {
	l := overSoft.listen(t).(*Listener)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = 2
	l.queue = append(l.queue, new(Conn))
	l.signal() // as push
	l.drained()
	require.Len(t, l.avail, 1)
	<-l.avail
	c, err := l.popLocked()
	require.NoError(t, err)
	require.NotNil(t, c)
	require.Len(t, l.avail, 1, "the other call would wait for a third")
	<-l.avail
	_, err = l.popLocked()
	require.ErrorIs(t, err, net.ErrClosed)
	l.waiting, l.over = 0, false // for Close
}
