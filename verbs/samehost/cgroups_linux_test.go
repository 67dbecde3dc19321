package samehost

import (
	"bufio"
	"os/exec"
	"syscall"
	"testing"

	"github.com/seed-b9b531af/ramjet/internal/cgroup"
	"github.com/seed-b9b531af/ramjet/internal/skip"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// newCgroup makes a control group, which ends with the test. Where the kernel does not tell those
// of others the test ends, after it has looked at what Cgroup says of that.
func newCgroup(t *testing.T, name string) *cgroup.Group {
	t.Helper()
	from, _ := sockets(t)
	if _, err := from.Cgroup(); err != nil {
		require.ErrorIs(t, err, ErrUnknownCgroup)
		require.False(t, cgroup.KernelTells(), "%v", err)
		require.ErrorContains(t, err, "before Linux 6.13")
		t.Skip(err)
	}
	c, err := cgroup.New(name)
	skip.Because(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// in runs a child in a control group.
func in(c *cgroup.Group, more uintptr) func(*exec.Cmd) {
	return func(cmd *exec.Cmd) {
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(c.Dir.Fd()), Cloneflags: more}
	}
}

func TestTheControlGroupOfAPeerIsTold(t *testing.T) {
	one, other := newCgroup(t, "one"), newCgroup(t, "other")
	require.NotEqual(t, one.ID, other.ID)
	var of *exec.Cmd
	listen := func(c *cgroup.Group, more uintptr) (*Conn, *bufio.Scanner) {
		name := newName()
		lines := start(t, func(cmd *exec.Cmd) { in(c, more)(cmd); of = cmd }, "listen", name)
		require.Equal(t, "<nil>", line(t, lines))
		conn, err := Dial(unix.SOCK_SEQPACKET, nil, name)
		require.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		require.Equal(t, "admitted", line(t, lines))
		return conn, lines
	}
	for _, c := range []*cgroup.Group{one, other} {
		conn, _ := listen(c, 0)
		id, err := conn.Cgroup()
		require.NoError(t, err)
		require.Equal(t, c.ID, id)
	}
	conn, _ := listen(one, 0)
	require.NoError(t, other.Take(of.Process.Pid))
	id, err := conn.Cgroup()
	require.NoError(t, err)
	require.Equal(t, other.ID, id, "where it is now counts")
	require.NoError(t, of.Process.Kill())
	of.Wait()
	_, err = conn.Cgroup()
	require.ErrorIs(t, err, ErrUnknownCgroup, "it has ended")
}

// Its number may mean another process there.
func TestTheControlGroupOfAPeerThatIsNotSeenIsNotTold(t *testing.T) {
	c := newCgroup(t, "unseen")
	l, err := Listen(ListenConfig{Type: unix.SOCK_SEQPACKET, Name: newName(), Backlog: 8})
	require.NoError(t, err)
	defer l.Close()
	text := line(t, start(t, in(c, unix.CLONE_NEWPID), "ask", l.Name()))
	require.Contains(t, text, ErrUnknownCgroup.Error())
	require.Contains(t, text, "PID namespace")
	require.NotContains(t, text, "6.13")
	require.Regexp(t, `^\d+ <nil>$`, line(t, start(t, in(c, 0), "ask", l.Name())))
}
