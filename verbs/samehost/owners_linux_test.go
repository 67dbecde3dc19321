package samehost

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/hang"
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

// nobodyLooks keeps the owners of names from being looked at during a test.
func nobodyLooks(t *testing.T) {
	owners.mu.Lock()
	defer owners.mu.Unlock()
	rest := owners.rest
	owners.rest = time.Now().Add(time.Hour)
	t.Cleanup(func() {
		owners.mu.Lock()
		defer owners.mu.Unlock()
		owners.rest = rest
	})
}

// fullAndFree are listeners of our user: one whose queue is full, and one whose queue is not.
func fullAndFree(t *testing.T) (full, free *Listener) {
	t.Helper()
	full, err := Listen(ListenConfig{Type: unix.SOCK_SEQPACKET, Name: newName()})
	require.NoError(t, err)
	t.Cleanup(func() { full.Close() })
	fill(t, full.Name())
	free, err = Listen(ListenConfig{Type: unix.SOCK_SEQPACKET, Name: newName(), Backlog: 8})
	require.NoError(t, err)
	t.Cleanup(func() { free.Close() })
	return full, free
}

// Where nobody can say whose a name is that is full, what comes after it is looked at
// all the same: a kernel may not tell, and a stranger may have so many sockets that not
// all are looked at.
func TestAFullQueueOfAnUnknownUserIsPassedOver(t *testing.T) {
	nobodyLooks(t)
	full, l := fullAndFree(t)
	for _, admit := range []func(Peer) bool{nil, everybody} {
		c, err := Dial(unix.SOCK_SEQPACKET, admit, full.Name(), l.Name())
		require.NoError(t, err)
		c.Close()
		s, err := l.Accept()
		require.NoError(t, err)
		s.Close()
		_, err = Dial(unix.SOCK_SEQPACKET, admit, full.Name(), newName())
		require.ErrorIs(t, err, unix.EAGAIN, "it may be ours, and is asked again")
	}
}

// TCP leads to the more specific of two listeners, however long its queue is.
func TestAFullQueueOfOurUserIsNotPassedOver(t *testing.T) {
	tellsOwners(t)
	full, l := fullAndFree(t)
	hang.Eventually(t, "the look's rest is over", func() bool {
		return owners.of(unix.SOCK_SEQPACKET, full.Name()).ours()
	})
	_, err := Dial(unix.SOCK_SEQPACKET, nil, full.Name(), l.Name())
	require.ErrorIs(t, err, unix.EAGAIN)
}

// AppArmor and Landlock forbid to connect to some sockets and not to others.
func TestANameThatIsForbiddenIsPassedOver(t *testing.T) {
	l, err := Listen(ListenConfig{Type: unix.SOCK_SEQPACKET, Name: newName(), Backlog: 8})
	require.NoError(t, err)
	defer l.Close()
	for _, policy := range []error{unix.EPERM, unix.EACCES} {
		c, err := dial(unix.SOCK_SEQPACKET, nil, 2, func(fd, i int) (owner, error) {
			if i == 0 {
				return unknownUser, policy
			}
			return unknownUser, connect(fd, l.Name())
		})
		require.NoError(t, err)
		c.Close()
		s, err := l.Accept()
		require.NoError(t, err)
		s.Close()
		_, err = dial(unix.SOCK_SEQPACKET, nil, 2, func(fd, i int) (owner, error) {
			if i == 0 {
				return unknownUser, policy
			}
			return unknownUser, unix.ECONNREFUSED
		})
		require.ErrorIs(t, err, policy, "which is why nobody was found")
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

// namesSeen are the names that EachName shows until ended is closed.
func namesSeen(ended <-chan struct{}) (names []string, err error) {
	err = EachName(os.Geteuid(), ended, func(name string) { names = append(names, name) })
	return names, err
}

// listeners makes sockets that listen, until the end of the test.
func listeners(t *testing.T, n int) (names []string) {
	t.Helper()
	for range n {
		l, err := Listen(ListenConfig{Type: unix.SOCK_SEQPACKET, Name: newName()})
		require.NoError(t, err)
		t.Cleanup(func() { l.Close() })
		names = append(names, l.Name())
	}
	return names
}

func TestEachNameShowsThoseOfOurUser(t *testing.T) {
	tellsOwners(t)
	bound := listeners(t, 2*pauseAfter)
	squatted := squatted(t)
	names, err := namesSeen(nil)
	require.NoError(t, err)
	require.Subset(t, names, bound)
	require.NotContains(t, names, squatted)
}

// To somebody who looks like others all their names would be their own.
func TestTheOverflowUserHasNoNames(t *testing.T) {
	listeners(t, 1)
	require.Contains(t, line(t, start(t, asOverflow, "names", "-")), ErrUnknownUser.Error())
}

// What others have taken is waited for, but no longer than the caller wants.
func TestEachNameEndsWhileItRests(t *testing.T) {
	tellsOwners(t)
	defer func() { searching.paid = time.Time{} }()
	names := listeners(t, 2*pauseAfter)
	ended := make(chan struct{})
	seen := 0
	err := EachName(os.Geteuid(), ended, func(string) {
		if seen++; seen == 1 {
			searching.paid = time.Now().Add(time.Hour)
			close(ended)
		}
	})
	require.Equal(t, os.ErrClosed, err)
	require.Less(t, seen, len(names))
	shown, err := namesSeen(ended)
	require.Equal(t, os.ErrClosed, err, "the next begins with the rest")
	require.Empty(t, shown)
}

// Whatever pieces it comes in, work takes a tenth of the time; who has little to do never rests.
func TestAnAllowanceIsATenthOfTheTime(t *testing.T) {
	now := time.Now()
	for _, piece := range []time.Duration{10 * time.Microsecond, time.Millisecond, 30 * time.Millisecond, 100 * time.Millisecond} {
		var a allowance
		begun, worked := now, time.Duration(0)
		for now.Sub(begun) < 20*time.Second {
			now = now.Add(piece)
			worked += piece
			now = now.Add(max(0, a.spend(now, piece)))
		}
		require.LessOrEqual(t, worked, now.Sub(begun)/10+10*time.Millisecond, piece)
		require.GreaterOrEqual(t, worked, now.Sub(begun)/10, piece)
	}
	var a allowance
	for range 1000 {
		now = now.Add(100 * time.Millisecond)
		require.LessOrEqual(t, a.spend(now, 9*time.Millisecond), time.Duration(0))
	}
	require.LessOrEqual(t, a.spend(now.Add(time.Hour), time.Hour), time.Second, "the process was stopped")
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
