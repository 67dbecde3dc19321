package samehost

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// tellsOwners skips a test where the kernel does not tell whose a socket is.
func tellsOwners(t *testing.T) {
	t.Helper()
	if _, err := Names(os.Geteuid()); err != nil {
		t.Skip(err)
	}
}

// fill connects to a name until its queue is full. The connections end with the test.
func fill(t *testing.T, name string) {
	t.Helper()
	for {
		fd, err := newSocket(unix.SOCK_SEQPACKET)
		require.NoError(t, err)
		t.Cleanup(func() { unix.Close(fd) })
		if err := connect(fd, name); err != nil {
			require.Equal(t, unix.EAGAIN, err)
			return
		}
	}
}

// squatted returns a name that a stranger has, and whose queue is full.
func squatted(t *testing.T) string {
	t.Helper()
	name := newName()
	require.Equal(t, "<nil>", line(t, start(t, asUser(overflow), "squat", name)))
	fill(t, name)
	return name
}

// A stranger who takes a more specific name and lets its queue fill up keeps nobody
// from the listener behind it, whatever the dialer's policy is.
func TestAFullQueueOfAStrangersIsPassedOver(t *testing.T) {
	tellsOwners(t)
	ours := func(p Peer) bool { return p.UID == uint32(os.Geteuid()) }
	for _, admit := range []func(Peer) bool{nil, ours, everybody} {
		name := squatted(t)
		l, err := Listen(ListenConfig{Type: unix.SOCK_SEQPACKET, Name: newName(), Backlog: 8})
		require.NoError(t, err)
		defer l.Close()
		var c *Conn
		require.Eventually(t, func() bool { // the look at the sockets has its rests
			c, err = Dial(unix.SOCK_SEQPACKET, admit, name, l.Name())
			return err == nil
		}, patience, time.Millisecond)
		require.Equal(t, os.Getpid(), c.Peer().PID)
		c.Close()
	}
}

// Whoever may be admitted is waited for.
func TestAFullQueueOfSomebodyWhoMayBeAdmittedIsWaitedFor(t *testing.T) {
	tellsOwners(t)
	name := squatted(t)
	_, err := Dial(unix.SOCK_SEQPACKET, everybody, name)
	require.ErrorIs(t, err, unix.EAGAIN)
	mine, err := Listen(ListenConfig{Type: unix.SOCK_SEQPACKET, Name: newName()})
	require.NoError(t, err)
	defer mine.Close()
	fill(t, mine.Name())
	for _, admit := range []func(Peer) bool{nil, everybody} {
		_, err := Dial(unix.SOCK_SEQPACKET, admit, mine.Name())
		require.ErrorIs(t, err, unix.EAGAIN)
	}
}

// The kernel is asked for all sockets to find one, so not for each dial.
func TestDialsToAFullQueueSeldomLookAtAllSockets(t *testing.T) {
	tellsOwners(t)
	name := squatted(t)
	before, begun := owners.looks, time.Now()
	dials := 0
	for ; dials < 1000; dials++ {
		_, err := Dial(unix.SOCK_SEQPACKET, nil, name)
		require.Error(t, err)
	}
	most := 2 + int(time.Since(begun)/knownTime)
	require.LessOrEqual(t, owners.looks-before, most)
}

// A look ends where the name is found, and the type belongs to the name.
func TestALookEndsWithWhatItLooksFor(t *testing.T) {
	tellsOwners(t)
	name := newName()
	for _, typ := range []int{unix.SOCK_SEQPACKET, unix.SOCK_STREAM} {
		l, err := Listen(ListenConfig{Type: typ, Name: name, Backlog: 8})
		require.NoError(t, err)
		defer l.Close()
	}
	types := map[int]int{}
	require.NoError(t, lookAtSockets(func(s listening) bool {
		if s.name == name {
			types[s.typ]++
			require.Equal(t, os.Geteuid(), s.owner)
		}
		return true
	}))
	require.Equal(t, map[int]int{unix.SOCK_SEQPACKET: 1, unix.SOCK_STREAM: 1}, types, fmt.Sprint("of ", name))
	seen := 0
	require.NoError(t, lookAtSockets(func(listening) bool { seen++; return false }))
	require.Equal(t, 1, seen)
}

// The kernel's answers are trusted, but old kernels leave attributes out.
func FuzzParseSocket(f *testing.F) {
	header := make([]byte, messageLen)
	attribute := func(kind uint16, value []byte) []byte {
		b := native.AppendUint16(nil, uint16(4+len(value)))
		b = append(native.AppendUint16(b, kind), value...)
		return append(b, make([]byte, -len(b)&3)...)
	}
	uid := attribute(attrUID, native.AppendUint32(nil, 1000))
	f.Add(slices.Concat(header, attribute(attrName, []byte("\x00name")), uid))
	f.Add(slices.Concat(header, attribute(attrName, []byte("/a/path")), uid))
	f.Add(slices.Concat(header, attribute(attrName, []byte("\x00name"))))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := parseSocket(b); err == nil && s.name != "" && s.name[0] != '@' {
			t.Fatalf("%q is not abstract", s.name)
		}
	})
}
