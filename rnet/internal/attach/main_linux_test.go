package attach

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// roleVariable names the part that a child process plays, and its arguments.
const roleVariable = "ATTACH_TEST_ROLE"

// roles are what a child process can do. It says what came of it, a line each,
// and ends at the latest when its standard input does.
var roles = map[string]func(args []string) error{
	"hold":  hold,
	"find":  find,
	"knock": knock,
	"flood": flood,
	"squat": squat,
	"wait":  func([]string) error { return say("ready") },
}

func TestMain(m *testing.M) {
	role := strings.Fields(os.Getenv(roleVariable))
	if len(role) == 0 {
		os.Exit(m.Run())
	}
	go func() {
		if err := roles[role[0]](role[1:]); err != nil {
			say("failed:", err)
		}
	}()
	io.Copy(io.Discard, os.Stdin) // ended by the parent, or its end
	os.Exit(0)
}

func say(words ...any) error {
	_, err := fmt.Println(words...)
	return err
}

// hold has an endpoint.
func hold([]string) error {
	s := &Server{Document: func() ([]byte, error) { return []byte("of a child"), nil }}
	if err := s.Hold(); err != nil {
		return err
	}
	return say("held")
}

// find says how many endpoints it finds.
func find([]string) error {
	list, err := Find()
	if err != nil {
		return err
	}
	return say("found", len(list))
}

// knock connects to a name, asking nobody who has it, and says how much it is
// told.
func knock(args []string) error {
	conn, err := net.Dial("unix", args[0])
	if err != nil {
		return err
	}
	told, err := io.ReadAll(conn) // ended by the endpoint
	if err != nil && !errors.Is(err, syscall.ECONNRESET) {
		return err
	}
	return say("told", len(told), "bytes")
}

// flood connects again and again. What it has closed stays in the queue until
// its turn.
func flood(args []string) error {
	for n := 0; ; n++ {
		if conn, err := net.Dial("unix", args[0]); err == nil {
			conn.Close()
		} else {
			time.Sleep(time.Millisecond) // the queue is full
		}
		if n == 4*backlog {
			say("flooding")
		}
	}
}

// squat serves lies under a name.
func squat(args []string) error {
	ln, err := net.Listen("unix", args[0])
	if err != nil {
		return err
	}
	say("squatting")
	for {
		conn, err := ln.Accept()
		if err != nil {
			return err
		}
		io.WriteString(conn, "lies")
		conn.Close()
	}
}

// child is another process. It ends with the test, also if that is killed.
type child struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner
}

// stranger is another user.
const stranger = 1000

func asStranger(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: stranger, Gid: stranger}}
}

// inNetwork runs a child in a network namespace of its own.
func inNetwork(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET} }

// asOverflow runs a child as the overflow user of a user namespace that has
// no other.
func asOverflow(cmd *exec.Cmd) {
	ids := []syscall.SysProcIDMap{{ContainerID: defaultOverflowUID, HostID: stranger, Size: 1}}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids,
		Credential: &syscall.Credential{Uid: defaultOverflowUID, Gid: defaultOverflowUID, NoSetGroups: true},
	}
}

// start starts a child with a role. Where the right to change it is missing
// the test is skipped.
func start(t testing.TB, change func(*exec.Cmd), role ...string) *child {
	t.Helper()
	cmd := exec.Command("/proc/self/exe") // which another user may not reach by its path
	cmd.Env = append(os.Environ(), roleVariable+"="+strings.Join(role, " "))
	cmd.Stderr = os.Stderr
	if change != nil {
		change(cmd)
	}
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	if err := cmd.Start(); change != nil && errors.Is(err, syscall.EPERM) {
		t.Skip("needs the rights of root:", err)
	} else {
		require.NoError(t, err)
	}
	t.Cleanup(func() {
		stdin.Close()
		cmd.Wait()
	})
	return &child{cmd: cmd, lines: bufio.NewScanner(stdout)}
}

// says waits for what the child says next, or its end.
func (c *child) says(t testing.TB) string {
	t.Helper()
	require.True(t, c.lines.Scan(), "the child ended without a word")
	return c.lines.Text()
}

// serve has an endpoint in this process that tells document.
func serve(t testing.TB, document []byte) (*Server, Endpoint) {
	t.Helper()
	s := &Server{Document: func() ([]byte, error) { return document, nil }}
	require.NoError(t, s.Hold())
	t.Cleanup(func() { s.Release() })
	return s, only(t, os.Getpid())
}

// of returns the endpoints of a process.
func of(t testing.TB, pid int) (own []Endpoint) {
	t.Helper()
	list, err := Find()
	require.NoError(t, err)
	for _, e := range list {
		if e.PID == pid {
			own = append(own, e)
		}
	}
	return own
}

// only returns the only endpoint of a process.
func only(t testing.TB, pid int) Endpoint {
	t.Helper()
	own := of(t, pid)
	require.Len(t, own, 1)
	return own[0]
}

// read asks an endpoint, again while it is busy.
func read(t testing.TB, e Endpoint) (document []byte, pid int, err error) {
	t.Helper()
	ctx := patiently(t)
	for {
		conn, err := e.Dial()
		if err == nil {
			return conn.Read(ctx)
		}
		if !errors.Is(err, ErrBusy) || ctx.Err() != nil {
			return nil, 0, err
		}
		time.Sleep(Rest)
	}
}

// patiently bounds what has to happen, on a slow machine too.
func patiently(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func gone(t testing.TB, pid int) {
	t.Helper()
	require.Eventually(t, func() bool { return len(of(t, pid)) == 0 }, 30*time.Second, time.Millisecond)
}
