package rcm

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A listener that is busy with others takes a message a little later. That is not what
// one does that is stopped.
func TestAListenerMayTakeItsTime(t *testing.T) {
	addr := at("127.0.0.1", freePort(t))
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: softName(addr)})
	require.NoError(t, err)
	defer l.Close()
	route, err := Soft().Resolve(within(t), addr)
	require.NoError(t, err)
	r := route.(*softRoute)
	require.True(t, r.Taken(0), "nothing was sent yet")
	qp := onSoft().newSide(t).qp(t)
	dialed := make(chan error, 1)
	go func() { // ends with the hang-up
		_, err := route.Connect(within(t), qp, ConnParam{})
		dialed <- err
	}()
	require.Eventually(t, func() bool { return !r.Taken(0) }, patience, time.Millisecond, "the request is unread")
	require.True(t, r.Taken(time.Hour), "but not for an hour")
	c, err := l.Accept()
	require.NoError(t, err)
	_, err = c.Read(make([]byte, maxMessage))
	require.NoError(t, err)
	require.True(t, r.Taken(0))
	c.Close()
	require.Error(t, await(t, dialed))
}
