package attach

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
	"github.com/seed-b9b531af/ramjet/verbs/samehost"
	"github.com/stretchr/testify/require"
)

func TestProcessesOfTheSameUserAreTold(t *testing.T) {
	c := roles.Start(t, "hold")
	require.Equal(t, "held", c.Line(t))
	told, pid, err := read(t, only(t, c.Cmd.Process.Pid))
	require.NoError(t, err)
	require.Equal(t, "of a child", string(told))
	require.Equal(t, c.Cmd.Process.Pid, pid)
}

func TestEndpointOpensWithTheFirstHoldAndClosesWithTheLastRelease(t *testing.T) {
	s := &Server{Document: func() ([]byte, error) { return []byte("told"), nil }}
	require.Empty(t, of(t, os.Getpid()))
	require.NoError(t, s.Hold())
	first := only(t, os.Getpid())
	require.NoError(t, s.Hold())
	s.Release()
	require.Equal(t, first, only(t, os.Getpid()))
	s.Release()
	gone(t, os.Getpid())
	_, _, err := read(t, first)
	require.Error(t, err)

	require.NoError(t, s.Hold())
	require.NotEqual(t, first, only(t, os.Getpid()), "nobody can have waited for this name")
	s.Release()
}

func TestAnotherUserIsDenied(t *testing.T) {
	_, e := serve(t, []byte("secret"))
	c := roles.StartIfAllowed(t, asStranger, "knock", e.name)
	require.Equal(t, "told 0 bytes", c.Line(t))
	told, _, err := read(t, e)
	require.NoError(t, err)
	require.Equal(t, "secret", string(told), "the user is told all the same")

	require.Equal(t, "found false", roles.StartIfAllowed(t, asStranger, "find", e.name).Line(t), "and it does not look like one of its own")
}

func TestNamesOfAnotherUserAreNotBelieved(t *testing.T) {
	lie := name(os.Geteuid(), 1, [8]byte{1})
	require.Equal(t, "squatting", roles.StartIfAllowed(t, asStranger, "squat", lie).Line(t))
	if _, err := samehost.Names(os.Geteuid()); err == nil {
		require.Empty(t, of(t, 1), "the kernel tells whose it is")
	}
	list, err := FindByName()
	require.NoError(t, err)
	require.Contains(t, list, Endpoint{PID: 1, name: lie})
	told, _, err := read(t, Endpoint{PID: 1, name: lie})
	require.ErrorIs(t, err, ErrStranger)
	require.Empty(t, told)
}

func TestTheKernelTellsOnlyTheSocketsOfTheUser(t *testing.T) {
	names, err := samehost.Names(os.Geteuid())
	if err != nil {
		t.Skip("needs Linux 5.3 with unix_diag:", err)
	}
	_, e := serve(t, nil)
	require.NotContains(t, names, e.name, "it was not there then")
	theirs := name(stranger, 1, [8]byte{2})
	require.Equal(t, "squatting", roles.StartIfAllowed(t, asStranger, "squat", theirs).Line(t))
	var bound []string
	for i := range 300 { // more than one message holds
		ln, err := net.Listen("unix", fmt.Sprintf("@ramjet/test/%d/%d", os.Getpid(), i))
		require.NoError(t, err)
		defer ln.Close()
		bound = append(bound, ln.Addr().String())
	}
	path, err := net.Listen("unix", t.TempDir()+"/socket")
	require.NoError(t, err)
	defer path.Close()

	names, err = samehost.Names(os.Geteuid())
	require.NoError(t, err)
	require.Contains(t, names, e.name)
	require.Subset(t, names, bound)
	require.NotContains(t, names, theirs)
	require.NotContains(t, names, path.Addr().String(), "it has no abstract name")
	names, err = samehost.Names(stranger)
	require.NoError(t, err)
	require.Contains(t, names, theirs)
	require.NotContains(t, names, e.name)
}

func TestFloodOfAnotherUserDoesNotLockOutTheUser(t *testing.T) {
	_, e := serve(t, []byte("told"))
	require.Equal(t, "flooding", roles.StartIfAllowed(t, asStranger, "flood", e.name).Line(t))
	told, _, err := read(t, e)
	require.NoError(t, err)
	require.Equal(t, "told", string(told))
}

func TestReaderThatStopsReadingIsHungUpOn(t *testing.T) {
	// More than a socket holds, and little enough to be read within patience on a busy machine.
	document := bytes.Repeat([]byte("x"), 2<<20)
	_, e := serve(t, document)
	slow, err := net.Dial("unix", e.name)
	require.NoError(t, err)
	defer slow.Close()

	told, _, err := read(t, e)
	require.NoError(t, err)
	require.Len(t, told, len(document), "the next one is told all")

	require.NoError(t, slow.SetDeadline(time.Now().Add(30*time.Second)))
	told, err = io.ReadAll(slow)
	require.NoError(t, err)
	require.Less(t, len(told), len(document))
}

func TestReleaseDoesNotWaitForAReader(t *testing.T) {
	asked := make(chan struct{}, 1)
	s := &Server{Document: func() ([]byte, error) {
		asked <- struct{}{}
		return make([]byte, 16<<20), nil
	}}
	require.NoError(t, s.Hold())
	slow, err := net.Dial("unix", only(t, os.Getpid()).name)
	require.NoError(t, err)
	defer slow.Close()
	<-asked // ended by the server, which answers the reader
	s.Release()
	require.NoError(t, slow.SetDeadline(time.Now().Add(30*time.Second)))
	told, err := io.ReadAll(slow)
	require.NoError(t, err)
	require.Less(t, len(told), 16<<20, "it was cut off")
	gone(t, os.Getpid())
}

func TestDeadProcessLeavesNothing(t *testing.T) {
	c := roles.Start(t, "hold")
	require.Equal(t, "held", c.Line(t))
	e := only(t, c.Cmd.Process.Pid)
	require.NoError(t, c.Cmd.Process.Kill())
	gone(t, c.Cmd.Process.Pid)
	_, _, err := read(t, e)
	require.Error(t, err)
}

func TestChildrenDoNotInheritTheEndpoint(t *testing.T) {
	s := &Server{Document: func() ([]byte, error) { return nil, nil }}
	require.NoError(t, s.Hold())
	require.Equal(t, "ready", roles.Start(t, "wait").Line(t))
	s.Release()
	gone(t, os.Getpid())
}

func TestOtherNetworkNamespacesDoNotSeeIt(t *testing.T) {
	_, e := serve(t, []byte("told"))
	require.Equal(t, "found false", roles.StartIfAllowed(t, inNetwork, "find", e.name).Line(t))
	require.Contains(t, roles.StartIfAllowed(t, inNetwork, "knock", e.name).Line(t), "connection refused")
}

// Users that the namespace has no number for look like the overflow user.
func TestOverflowUserOfANamespaceHasNoEndpoint(t *testing.T) {
	require.Contains(t, roles.StartIfAllowed(t, asOverflow, "hold").Line(t), samehost.ErrUnknownUser.Error())
	require.Contains(t, roles.StartIfAllowed(t, asOverflow, "find").Line(t), samehost.ErrUnknownUser.Error())
}

func TestOnlyListeningSocketsWithOurNamesAreFound(t *testing.T) {
	good := name(7, 12, [8]byte{0xab})
	table := strings.Join([]string{
		"Num       RefCount Protocol Flags    Type St Inode Path",
		"ffff8880: 00000002 00000000 00010000 0001 01 1234 " + good,
		"ffff8880: 00000002 00000000 00000000 0001 03 1235 " + good, // accepted
		"ffff8880: 00000002 00000000 00010000 0001 01 1236 " + name(8, 12, [8]byte{1}),
		"ffff8880: 00000002 00000000 00010000 0001 01 1237 @/tmp/.X11-unix/X0",
		"ffff8880: 00000002 00000000 00010000 0001 01 1238",
		"ffff8880: 00000002 00000000 00010000 0001 01 1239 " + good + " with spaces",
	}, "\n")
	list, err := findIn(strings.NewReader(table), 7)
	require.NoError(t, err)
	require.Equal(t, []Endpoint{{PID: 12, name: good}}, list)
}

func TestOnlyWholeNamesAreParsed(t *testing.T) {
	uid, pid, ok := parseName(name(1000, 4242, [8]byte{1, 2, 3}))
	require.True(t, ok)
	require.Equal(t, []int{1000, 4242}, []int{uid, pid})
	for _, bad := range []string{
		"", prefix, prefix + "1/2", prefix + "1/2/3", prefix + "1/2/0123456789abcdeg", prefix + "1/2/0123456789abcdef/",
		prefix + "-1/2/0123456789abcdef", prefix + "+1/2/0123456789abcdef", prefix + "01/2/0123456789abcdef",
		prefix + "1/4294967296/0123456789abcdef", "@ramjet/stats2/1/2/0123456789abcdef", prefix + "1//0123456789abcdef",
	} {
		_, _, ok := parseName(bad)
		require.False(t, ok, "%q", bad)
	}
}

func FuzzParseName(f *testing.F) {
	f.Add(name(0, 1, [8]byte{}))
	f.Add(prefix + "1/2/x")
	f.Fuzz(func(t *testing.T, text string) {
		uid, pid, ok := parseName(text)
		if ok && !strings.HasPrefix(text, fmt.Sprintf("%s%d/%d/", prefix, uid, pid)) {
			t.Fatalf("%q is not of user %d, process %d", text, uid, pid)
		}
	})
}
