package rcm

import (
	"net"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// connectTo sends a request to the listener at an address, whose answer the test
// hears from dialed.
func connectTo(t *testing.T, device string, port uint16) (r *softRoute, dialed chan error) {
	t.Helper()
	route, err := SoftOn(device).Resolve(within(t), at("127.0.0.1", port))
	require.NoError(t, err)
	r = route.(*softRoute)
	require.True(t, r.Taken(), "nothing was sent yet")
	qp := onSoft().newSide(t).qp(t)
	dialed = make(chan error, 1)
	go func() { // ends with the hang-up
		_, err := route.Connect(within(t), qp, ConnParam{})
		dialed <- err
	}()
	return r, dialed
}

// unread returns how much of what was sent is still there.
func (r *softRoute) unread(t *testing.T) (n int) {
	t.Helper()
	raw, err := r.sock.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }))
	require.NoError(t, err)
	return n
}

// A listener that has much to do takes a message later: this process runs, and reads
// nothing.
func TestAListenerThatRunsMayTakeItsTime(t *testing.T) {
	port := freePort(t)
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: softName(at("127.0.0.1", port))})
	require.NoError(t, err)
	defer l.Close()
	r, dialed := connectTo(t, softDevice, port)
	require.Eventually(t, func() bool { return r.unread(t) > 0 }, patience, time.Millisecond)
	for range 100 {
		require.True(t, r.Taken())
	}
	c, err := l.Accept()
	require.NoError(t, err)
	_, err = c.Read(make([]byte, maxMessage))
	require.NoError(t, err)
	require.True(t, r.Taken())
	c.Close()
	require.Error(t, await(t, dialed))
	require.True(t, r.Taken(), "the connection has ended, and holds up nobody")
}

func TestAListenerThatIsStoppedTakesNothing(t *testing.T) {
	port := freePort(t)
	c := startChild(t, 0, "squat", softDevice, at("127.0.0.1", port).String())
	require.NoError(t, c.cmd.Process.Signal(unix.SIGSTOP))
	require.Eventually(t, func() bool { return stopped(c.cmd.Process.Pid) }, patience, time.Millisecond)
	r, dialed := connectTo(t, softDevice, port)
	require.Eventually(t, func() bool { return !r.Taken() }, patience, time.Millisecond)
	require.NoError(t, c.cmd.Process.Signal(unix.SIGCONT))
	require.Eventually(t, func() bool { return r.unread(t) == 0 }, patience, time.Millisecond)
	require.True(t, r.Taken())
	require.NoError(t, c.cmd.Process.Kill())
	require.Error(t, await(t, dialed))
}

// What a peer is late with is waited for longer than a machine with a hundred busy
// processes keeps it from its processor.
func TestAPeerOnThisHostMayBeLate(t *testing.T) {
	p := onSoft().newPair(t, ConnParam{}, ConnParam{})
	for _, qp := range []*verbs.QP{p.dialed, p.accepted} {
		a, err := qp.Query()
		require.NoError(t, err)
		require.GreaterOrEqual(t, verbs.AckTimeout(a.Timeout)*time.Duration(a.RetryCount+1), 5*time.Second)
	}
	p = onSoft().newPair(t, ConnParam{Timeout: 9}, ConnParam{Timeout: 9})
	a, err := p.dialed.Query()
	require.NoError(t, err)
	require.EqualValues(t, 9, a.Timeout, "what is asked for")
}
