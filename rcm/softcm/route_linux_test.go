package softcm

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/internal/skip"
	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/cmtest"
	"github.com/seed-b9b531af/ramjet/rcm/internal/handshake"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// connectTo sends a request to the listener at an address, whose answer the test
// gets from dialed.
func connectTo(t *testing.T, device string, port uint16) (r *route, dialed chan error) {
	t.Helper()
	way, err := New(Config{Device: device}).Resolve(cmtest.Within(t), cmtest.At("127.0.0.1", port))
	require.NoError(t, err)
	r = way.(*route)
	require.True(t, r.Taken(), "nothing was sent yet")
	qp := onSoft().NewSide(t).QP(t)
	dialed = make(chan error, 1)
	go func() { // ends with the hang-up
		_, err := way.Connect(cmtest.Within(t), qp, rcm.ConnParam{})
		dialed <- err
	}()
	return r, dialed
}

// unread returns how much of what was sent is still there.
func (r *route) unread(t *testing.T) (n int) {
	t.Helper()
	raw, err := r.sock.Load().SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }))
	require.NoError(t, err)
	return n
}

// A listener that has much to do takes a message later: this process runs, and reads
// nothing.
func TestAListenerThatRunsMayTakeItsTime(t *testing.T) {
	port := cmtest.FreePort(t)
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: nameOf(cmtest.At("127.0.0.1", port))})
	require.NoError(t, err)
	defer l.Close()
	r, dialed := connectTo(t, DefaultDevice, port)
	require.Eventually(t, func() bool { return r.unread(t) > 0 }, cmtest.Timeout, time.Millisecond)
	for range 100 {
		require.True(t, r.Taken())
	}
	c, err := l.Accept()
	require.NoError(t, err)
	_, err = c.Read(make([]byte, handshake.MaxMessage))
	require.NoError(t, err)
	require.True(t, r.Taken())
	c.Close()
	require.Error(t, cmtest.Await(t, dialed))
	require.True(t, r.Taken(), "the connection has ended, and holds up nobody")
}

func TestAListenerThatIsStoppedTakesNothing(t *testing.T) {
	port := cmtest.FreePort(t)
	c := cmtest.StartChild(t, 0, "squat", DefaultDevice, cmtest.At("127.0.0.1", port).String())
	require.NoError(t, c.Cmd.Process.Signal(unix.SIGSTOP))
	require.Eventually(t, func() bool { return stopped(c.PID()) }, cmtest.Timeout, time.Millisecond)
	r, dialed := connectTo(t, DefaultDevice, port)
	require.Eventually(t, func() bool { return !r.Taken() }, cmtest.Timeout, time.Millisecond)
	require.NoError(t, c.Cmd.Process.Signal(unix.SIGCONT))
	require.Eventually(t, func() bool { return r.unread(t) == 0 }, cmtest.Timeout, time.Millisecond)
	require.True(t, r.Taken())
	require.NoError(t, c.Kill())
	require.Error(t, cmtest.Await(t, dialed))
}

// What a peer is late with is waited for longer than a machine with a hundred busy
// processes keeps it from its processor.
func TestAPeerOnThisHostMayBeLate(t *testing.T) {
	p := onSoft().NewPair(t, rcm.ConnParam{}, rcm.ConnParam{})
	for _, qp := range []*verbs.QP{p.Dialed, p.Accepted} {
		a, err := qp.Query()
		require.NoError(t, err)
		require.GreaterOrEqual(t, verbs.AckTimeout(a.Timeout)*time.Duration(a.RetryCount+1), 5*time.Second)
	}
	p = onSoft().NewPair(t, rcm.ConnParam{Timeout: 9}, rcm.ConnParam{Timeout: 9})
	a, err := p.Dialed.Query()
	require.NoError(t, err)
	require.EqualValues(t, 9, a.Timeout, "what is asked for")
}

// A dial goes on waiting while the listener's process runs.
func TestRouteTellsForHowLongTheListenersProcessHasRun(t *testing.T) {
	port := cmtest.FreePort(t)
	c := cmtest.StartChild(t, 0, "toil", DefaultDevice, cmtest.At("127.0.0.1", port).String())
	r, dialed := connectTo(t, DefaultDevice, port)
	before := r.Ran()
	hang.Eventually(t, "a tick of the listener's process", func() bool { return r.Ran() > before })
	require.NoError(t, c.Kill())
	require.Error(t, cmtest.Await(t, dialed))
	require.Zero(t, statOf(0))
}

// Of a process in a PID namespace of its own whose /proc is that of another one.
func TestAForeignProcTellsNothing(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), cmtest.RoleVariable+"=foreign")
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	if err := cmd.Start(); err != nil {
		skip.Because(t, err)
	}
	require.NoError(t, cmd.Wait()) // ends with the child, which waits for nothing
}

func foreign([]string) error {
	if s := statOf(os.Getpid()); s != (processStat{}) {
		return fmt.Errorf("process %d, which has this number elsewhere, is taken for us: %+v", os.Getpid(), s)
	}
	if stopped(os.Getpid()) {
		return fmt.Errorf("we are said to be stopped")
	}
	return nil
}
