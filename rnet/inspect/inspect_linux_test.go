package inspect

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/skip"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/seed-b9b531af/ramjet/rnet/internal/attach"
	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
)

const (
	connections = 3
	sent        = 1000 // bytes on each
)

func TestMain(m *testing.M) {
	roles.Play()
	os.Exit(m.Run())
}

func init() {
	roles.Add("busy", busy)
	roles.Add("crowd", crowd)
}

// busy makes three connections to its own process.
func busy([]string) error {
	ln, err := rnet.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	for range connections {
		d := rnet.Dialer{HeadStart: time.Minute} // however busy the machine is
		c, err := d.Dial("tcp", ln.Addr().String())
		if err != nil {
			return err
		}
		if _, err := c.Write(make([]byte, sent)); err != nil {
			return err
		}
		s, err := ln.Accept()
		if err != nil {
			return err
		}
		if _, err := io.ReadFull(s, make([]byte, sent)); err != nil {
			return err
		}
		defer c.Close()
		defer s.Close()
	}
	fmt.Println(ln.Addr())
	select {} // ended by the end of the process
}

const (
	phantom = 1_000_000 // the process id in the names of a crowd, and on
	many    = 200
)

// crowd has names of other processes' endpoints, and lets those wait who ask
// them: their queues are full.
func crowd([]string) error {
	for i := range many {
		// not those of a test beside this one
		name := fmt.Sprintf("@ramjet/stats1/0/%d/%016x", phantom+i, rand.Uint64())
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: name}), unix.Listen(fd, 0)); err != nil {
			return err
		}
		for {
			c, err := net.Dial("unix", name)
			if errors.Is(err, unix.EAGAIN) {
				break
			}
			if err != nil {
				return err
			}
			defer c.Close()
		}
	}
	fmt.Println("crowded")
	select {} // ended by the end of the process
}

func unchanged(*exec.Cmd) {}

// asStranger makes a child another user's.
func asStranger(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
}

// startBusy starts a busy process and returns where it listens. It ends with
// the test, also if it is stopped.
func startBusy(t testing.TB, change func(*exec.Cmd)) (cmd *exec.Cmd, address string) {
	t.Helper()
	p := roles.StartIfAllowed(t, change, "busy")
	t.Cleanup(func() { p.Cmd.Process.Signal(syscall.SIGCONT) })
	address = p.Line(t)
	_, _, err := net.SplitHostPort(address)
	require.NoError(t, err, address)
	return p.Cmd, address
}

// told returns what a process tells, nil if it is not there.
func told(t testing.TB, pid int) *Process {
	t.Helper()
	list, err := Processes(t.Context())
	require.NoError(t, err)
	for i := range list {
		if list[i].PID == pid {
			return &list[i]
		}
	}
	return nil
}

func TestProcessTellsWithoutCodeForIt(t *testing.T) {
	cmd, address := startBusy(t, unchanged)
	p := told(t, cmd.Process.Pid)
	require.NotNil(t, p)
	require.NoError(t, p.Err)
	require.Contains(t, p.Endpoint, "@ramjet/stats1/")
	snap := &p.Snapshot
	require.Equal(t, cmd.Process.Pid, snap.PID)
	require.Equal(t, "inspect.test", snap.Program)
	require.WithinDuration(t, time.Now(), snap.Time, time.Minute)

	require.Len(t, snap.Listeners, 1)
	require.Equal(t, address, snap.Listeners[0].Addr.String())
	require.EqualValues(t, connections, snap.Listeners[0].Streams)
	require.Equal(t, 1, snap.Listeners[0].Sessions)

	require.Len(t, snap.Sessions, 2, "both ends of one")
	for _, s := range snap.Sessions {
		require.Equal(t, rnet.Soft, s.Transport)
		require.Equal(t, "soft0", s.Device)
		require.Equal(t, connections, s.Streams)
		require.EqualValues(t, connections, s.StreamsOpened)
		if s.Dialed {
			require.Equal(t, address, s.RemoteAddr.String())
			require.EqualValues(t, connections*sent, s.BytesOut)
		} else {
			require.Equal(t, address, s.LocalAddr.String())
			require.EqualValues(t, connections*sent, s.BytesIn)
		}
	}
	require.Len(t, snap.Streams, 2*connections)
	for _, s := range snap.Streams {
		require.EqualValues(t, sent, s.BytesIn+s.BytesOut)
		require.Zero(t, s.Unread)
	}
	require.False(t, snap.Truncated)
	require.Equal(t, []rnet.DialCount{{Transport: rnet.Soft, Reason: "none", Dials: connections}}, snap.Dials)
	require.Positive(t, snap.PinnedBytes)
}

// The type for who tells is rnet's own.
func TestNothingThatIsToldIsLost(t *testing.T) {
	cmd, _ := startBusy(t, unchanged)
	endpoints, err := attach.Find()
	require.NoError(t, err)
	for _, e := range endpoints {
		if e.PID != cmd.Process.Pid {
			continue
		}
		conn, err := e.Dial()
		require.NoError(t, err)
		told, _, err := conn.Read(t.Context())
		require.NoError(t, err)
		var snap Snapshot
		require.NoError(t, json.Unmarshal(told, &snap))
		again, err := json.Marshal(&snap)
		require.NoError(t, err)
		require.JSONEq(t, string(told), string(again))
		return
	}
	t.Fatal("it is not there")
}

func TestProcessThatOptsOutIsNotThere(t *testing.T) {
	cmd, _ := startBusy(t, func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, "RNET_STATS=off") })
	require.Nil(t, told(t, cmd.Process.Pid))
}

func TestAnotherUserIsDenied(t *testing.T) {
	cmd, _ := startBusy(t, asStranger)
	require.Nil(t, told(t, cmd.Process.Pid), "not even root is told")
}

func TestProcessThatIsStoppedHoldsUpNobody(t *testing.T) {
	stopped, _ := startBusy(t, unchanged)
	running, _ := startBusy(t, unchanged)
	require.NoError(t, stopped.Process.Signal(syscall.SIGSTOP))
	var p *Process
	for try := 0; p == nil || p.Err == nil; try++ { // the signal takes its time
		require.Less(t, try, 1000)
		p = told(t, stopped.Process.Pid)
	}
	require.ErrorContains(t, p.Err, "context deadline exceeded")
	p = told(t, running.Process.Pid)
	require.NotNil(t, p)
	require.NoError(t, p.Err)

	require.NoError(t, stopped.Process.Signal(syscall.SIGCONT))
	p = told(t, stopped.Process.Pid)
	require.NotNil(t, p)
	require.NoError(t, p.Err)
}

// They would take all time, and the places of those that are there.
func TestNamesThatStrangersMakeUpAreNotThere(t *testing.T) {
	if os.Geteuid() != 0 {
		skip.Because(t, errors.New("it needs the rights of root"))
	}
	require.Equal(t, "crowded", roles.StartIfAllowed(t, asStranger, "crowd").Line(t))
	cmd, _ := startBusy(t, unchanged)
	verify := func(list []Process) {
		t.Helper()
		found := false
		for _, p := range list {
			require.Less(t, p.PID, phantom)
			found = found || p.PID == cmd.Process.Pid && p.Err == nil
		}
		require.True(t, found)
	}
	list, err := Processes(t.Context())
	require.NoError(t, err)
	verify(list)

	endpoints, err := attach.FindByName() // as where the kernel does not tell the owners
	require.NoError(t, err)
	require.Greater(t, len(endpoints), many)
	var l look
	l.ask(t.Context(), endpoints)
	verify(l.list)
}

func TestProcessThatHasEndedIsNotThere(t *testing.T) {
	cmd, _ := startBusy(t, unchanged)
	require.NotNil(t, told(t, cmd.Process.Pid))
	require.NoError(t, cmd.Process.Kill())
	require.Eventually(t, func() bool { return told(t, cmd.Process.Pid) == nil }, 30*time.Second, time.Millisecond)
}
