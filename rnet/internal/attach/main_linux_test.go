package attach

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	roles.Play()
	os.Exit(m.Run())
}

// A child process says what came of its role, a line each, and stays.
func init() {
	for name, do := range map[string]func(args []string) error{
		"hold":  hold,
		"find":  find,
		"knock": knock,
		"flood": flood,
		"squat": squat,
		"wait":  func([]string) error { return say("ready") },
	} {
		roles.Add(name, func(args []string) error {
			if err := do(args); err != nil {
				say("failed:", err)
			}
			select {} // ended by the end of the process
		})
	}
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

// find says whether an endpoint of a name is among those that it finds.
func find(args []string) error {
	list, err := Find()
	if err != nil {
		return err
	}
	found := slices.ContainsFunc(list, func(e Endpoint) bool { return e.name == args[0] })
	return say("found", found)
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
// the server takes it.
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

// stranger is another user.
const stranger = 1000

func asStranger(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: stranger, Gid: stranger}}
}

// inNetwork runs a child in a network namespace of its own.
func inNetwork(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET} }

// overflow is the overflow user, unless /proc/sys/kernel/overflowuid says otherwise.
const overflow = 65534

// asOverflow runs a child as the overflow user of a user namespace that has
// no other.
func asOverflow(cmd *exec.Cmd) {
	ids := []syscall.SysProcIDMap{{ContainerID: overflow, HostID: stranger, Size: 1}}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids,
		Credential: &syscall.Credential{Uid: overflow, Gid: overflow, NoSetGroups: true},
	}
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
