package samehost

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func everybody(Peer) bool { return true }

// newName returns a name that nobody has.
var names int

func newName() string {
	names++
	return fmt.Sprintf("@ramjet/test/samehost/%d/%d", os.Getpid(), names)
}

func TestAPeerIsOfOurUserOnlyIfTheKernelTellsItFromOthers(t *testing.T) {
	require.NoError(t, CheckUser())
	require.True(t, Peer{UID: uint32(os.Geteuid())}.SameUser())
	require.False(t, Peer{UID: uint32(os.Geteuid()) + 1}.SameUser())
	require.Contains(t, line(t, start(t, asOverflow, "check", "-")), ErrUnknownUser.Error())
	// In the first user namespace the number belongs to one user, nobody.
	require.Equal(t, "<nil>", line(t, start(t, asUser(overflow), "check", "-")))
}

func TestOurUserIsKnownWithoutDescriptors(t *testing.T) {
	require.NoError(t, CheckUser())
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: limit.Max}))
	_, openErr := os.Open("/proc/self/status")
	err := CheckUser()
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	require.ErrorIs(t, openErr, unix.EMFILE)
	if os.Geteuid() != overflow {
		require.NoError(t, err)
	}
}

// A listener in a user namespace where everybody looks like itself lets nobody in.
func TestAListenerThatRunsAsTheOverflowUserKnowsNobody(t *testing.T) {
	name := newName()
	child := start(t, asOverflow, "listen", name)
	require.Equal(t, "<nil>", line(t, child))
	c, err := Dial(unix.SOCK_SEQPACKET, everybody, name)
	require.NoError(t, err)
	defer c.Close()
	require.Equal(t, fmt.Sprint("denied user ", overflow), line(t, child), "our user, as it sees it")
}

// Nor does a dialer there talk to whoever has taken a name.
func TestADialerThatRunsAsTheOverflowUserKnowsNobody(t *testing.T) {
	l, err := Listen(ListenConfig{Type: unix.SOCK_SEQPACKET, Name: newName(), Backlog: 8, Admit: everybody})
	require.NoError(t, err)
	defer l.Close()
	said := line(t, start(t, asOverflow, "dial", l.Name()))
	require.Contains(t, said, fmt.Sprintf("of user %d listens", overflow))
	require.Contains(t, said, ErrUnknownUser.Error())
}

func TestAUserNamespaceWithAllUsersIsRecognized(t *testing.T) {
	for uidMap, all := range map[string]bool{
		"         0          0 4294967295\n":         true,
		"         0     100000      65536\n":         false,
		"         0          0      65536\n":         false,
		"0 0 65536\n65536 65536 4294901759\n":        false, // all, but who writes that?
		"":                                           false,
		"     65534       1000          1\n":         false,
		"         0          0 4294967295\n 1 1 1\n": false,
	} {
		require.Equal(t, all, mapsAllUsers(uidMap), "%q", uidMap)
	}
}

func TestIsUnix(t *testing.T) {
	for _, c := range []struct {
		domain, typ int
		want        bool
	}{
		{unix.AF_UNIX, unix.SOCK_STREAM, true},
		{unix.AF_UNIX, unix.SOCK_SEQPACKET, false},
		{unix.AF_INET, unix.SOCK_STREAM, false},
	} {
		fd, err := unix.Socket(c.domain, c.typ|unix.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
		require.Equal(t, c.want, IsUnix(fd, unix.SOCK_STREAM), "%+v", c)
		unix.Close(fd)
	}
	var pipe [2]int
	require.NoError(t, unix.Pipe2(pipe[:], unix.O_CLOEXEC))
	require.False(t, IsUnix(pipe[0], unix.SOCK_STREAM))
	unix.Close(pipe[0])
	unix.Close(pipe[1])
}
