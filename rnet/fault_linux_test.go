package rnet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptrace"
	"os"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/internal/leak"
	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
	"github.com/seed-b9b531af/ramjet/rnet/internal/traffic"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft"
)

// failingCalls are the calls that may fail while a session is set up.
var failingCalls = []struct {
	name string
	set  func(f *soft.Faults, call soft.FailCall)
}{
	{"AllocMR", func(f *soft.Faults, call soft.FailCall) { f.FailAllocMR = call }},
	{"memfd_create", func(f *soft.Faults, call soft.FailCall) { f.FailMemfd = call }},
	{"mmap", func(f *soft.Faults, call soft.FailCall) { f.FailMmap = call }},
	{"socketpair", func(f *soft.Faults, call soft.FailCall) { f.FailSocketpair = call }},
}

// useEcho sends something through an echoing connection and back.
func useEcho(c net.Conn) error {
	data := traffic.Bytes(5, 100<<10)
	failed := make(chan error, 1)
	go func() {
		_, err := c.Write(data)
		failed <- err
	}()
	got := make([]byte, len(data))
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	if err := traffic.Check(got, 5, 0); err != nil {
		return err
	}
	return <-failed
}

// Whatever fails while a session is set up, and on whichever side, the dial
// ends in a connection that works.
func TestDialSurvivesEachFailureOfItsOwn(t *testing.T) {
	errnos := []syscall.Errno{syscall.ENOMEM, syscall.EMFILE, syscall.EPERM}
	errnos = errnos[:orRaced(len(errnos), 1)] // what is undone is the same
	for _, call := range failingCalls {
		for _, errno := range errnos {
			t.Run(fmt.Sprint(call.name, " ", unix.ErrnoName(errno)), func(t *testing.T) {
				leak.Check(t)
				child := roles.Start(t, "target", "auto")
				address := child.Line(t)
				reasons := untilNothingFails(t, call.set, errno, func() net.Conn {
					negatives.Forget(address)
					c, err := Dial("tcp", address)
					require.NoError(t, err)
					_, err = c.Write([]byte{traffic.Echo})
					require.NoError(t, err)
					require.NoError(t, useEcho(c))
					return c
				}, address)
				child.Stop()
				t.Log(reasons)
			})
		}
	}
}

// untilNothingFails lets the first call fail, then the second, and so on,
// until a dial has made all of its calls. It returns the reasons for which the
// dials fell back.
func untilNothingFails(t testing.TB, set func(*soft.Faults, soft.FailCall), errno syscall.Errno, dial func() net.Conn, address string) []string {
	var reasons []string
	for at := 1; ; at++ {
		require.Less(t, at, 50, "no end of failures")
		var f soft.Faults
		set(&f, soft.FailCall{At: at, Err: errno})
		dev, err := acquireDevice("soft0")
		require.NoError(t, err)
		soft.InjectFaults(dev.ctx, &f)
		c := dial()
		soft.InjectFaults(dev.ctx, nil)
		_, fast := c.(*Conn)
		c.Close()
		waitForNoSession(t)
		dev.release()
		if fast {
			return reasons
		}
		told := Explain(address)
		last := told[len(told)-1]
		require.Equal(t, TCP, last.Transport)
		require.Error(t, last.Err)
		reasons = append(reasons, last.Reason)
		require.Contains(t, []string{
			"no-memory", "no-descriptors", "memlock", "pin-limit", "permission", "memfd-forbidden", "peer-died", "handshake-timeout",
		}, last.Reason)
	}
}

// waitForNoSession waits until the sessions of this process have gone idle.
func waitForNoSession(t testing.TB) {
	t.Helper()
	hang.Eventually(t, "all sessions have ended", func() bool { return len(liveSessions.list()) == 0 })
}

func TestListenerSurvivesEachFailureOfItsOwn(t *testing.T) {
	for _, call := range failingCalls {
		t.Run(call.name, func(t *testing.T) {
			leak.Check(t)
			ln := carrier{}.listen(t)
			for at := 1; ; at++ {
				require.Less(t, at, 50, "no end of failures")
				var f soft.Faults
				call.set(&f, soft.FailCall{At: at, Err: syscall.ENOMEM})
				dev, err := acquireDevice("soft0")
				require.NoError(t, err)
				soft.InjectFaults(dev.ctx, &f)
				child := roles.Start(t, "useecho", ln.Addr().String())
				s, err := ln.Accept()
				require.NoError(t, err)
				io.Copy(s, s)
				s.Close()
				said := child.Line(t)
				child.Stop()
				soft.InjectFaults(dev.ctx, nil)
				waitForNoSession(t)
				dev.release()
				require.Contains(t, said, "worked over ")
				if said == "worked over *rnet.Conn" {
					return
				}
			}
		})
	}
}

func init() { roles.Add("useecho", dialAndUse) }

// dialAndUse dials an echo server, uses it and tells how that went.
func dialAndUse(args []string) error {
	c, err := Dial("tcp", args[0])
	if err != nil {
		fmt.Println("dial:", err)
		return nil
	}
	if err := useEcho(c); err != nil {
		fmt.Println("use of", typeName(c)+":", err)
		return nil
	}
	c.Close()
	fmt.Println("worked over", typeName(c))
	return nil
}

func TestDialSurvivesThePinLimit(t *testing.T) {
	leak.Check(t)
	ln := carrier{}.listen(t)
	address := ln.Addr().String()
	defer verbs.SetPinLimit(verbs.SetPinLimit(minRingSize / 2))
	c, err := patient().Dial("tcp", address)
	require.NoError(t, err)
	require.IsType(t, (*net.TCPConn)(nil), c)
	c.Close()
	told := Explain(address)
	require.Equal(t, "pin-limit", told[len(told)-1].Reason)
	s, err := ln.Accept()
	require.NoError(t, err)
	s.Close()

	verbs.SetPinLimit(verbs.PinnedBytes() + 3*minRingSize) // too little for the usual rings
	negatives.Forget(address)
	c, s = overSoft.connect(t, ln)
	require.EqualValues(t, minRingSize, c.(*Conn).s.mux.Link().RingSize()+s.(*Conn).s.mux.Link().RingSize()-2*minRingSize)
	_, err = c.Write([]byte("narrow"))
	require.NoError(t, err)
	_, err = io.ReadFull(s, make([]byte, 6))
	require.NoError(t, err)
}

// With few descriptors left a dial works as long as one over TCP would.
func TestDialSurvivesTheDescriptorLimit(t *testing.T) {
	ln := carrier{}.listen(t)
	served := hang.Start(t, func() { // ends with the listener
		for {
			s, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				io.Copy(s, s)
				s.Close()
			}()
		}
	})
	child := roles.Start(t, "fewdescriptors", ln.Addr().String())
	var kinds []string
	for left := 0; ; left++ {
		said := child.Line(t)
		t.Log(left, "descriptors left:", said)
		if said == "done" {
			break
		}
		kinds = append(kinds, said)
	}
	require.Contains(t, kinds, "*net.TCPConn no-descriptors")
	require.Contains(t, kinds, "*rnet.Conn")
	first := slices.Index(kinds, "*net.TCPConn no-descriptors")
	for left, kind := range kinds {
		switch {
		case left < first:
			require.Equal(t, "too many open files", kind)
		default:
			require.Contains(t, []string{"*net.TCPConn no-descriptors", "*rnet.Conn"}, kind, "%d descriptors left", left)
		}
	}
	child.Stop()
	ln.Close()
	served()
}

func init() { roles.Add("fewdescriptors", dialWithFewDescriptors) }

// takeDescriptors takes all descriptors that this process may have.
func takeDescriptors() (taken []int, err error) {
	if ln, err := net.Listen("tcp", "127.0.0.1:0"); err == nil {
		ln.Close() // starts the runtime's poller
	}
	const limit = 64
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
		return nil, err
	}
	for {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.EMFILE) {
			return taken, nil
		}
		if err != nil {
			return nil, err
		}
		taken = append(taken, fd)
	}
}

// A dial that finds no descriptor for its socket waits a little for one.
func TestDialTakesADescriptorThatComesFree(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	child := roles.Start(t, "lastdescriptor", ln.Addr().String())
	require.Equal(t, "*net.TCPConn no-descriptors", child.Line(t))
	child.Stop()
}

func init() { roles.Add("lastdescriptor", dialWithALateDescriptor) }

// dialWithALateDescriptor dials while a descriptor comes free.
func dialWithALateDescriptor(args []string) error {
	taken, err := takeDescriptors()
	if err != nil {
		return err
	}
	ctx := httptrace.WithClientTrace(context.Background(), &httptrace.ClientTrace{
		ConnectDone: func(_, _ string, err error) {
			if errors.Is(err, unix.EMFILE) {
				unix.Close(taken[0])
			}
		},
	})
	c, err := new(Dialer).DialContext(ctx, "tcp", args[0])
	if err != nil {
		return err
	}
	told := Explain(args[0])
	fmt.Println(typeName(c), told[len(told)-1].Reason)
	return c.Close()
}

// dialWithFewDescriptors dials with no descriptor left, with one, and so on.
func dialWithFewDescriptors(args []string) error {
	taken, err := takeDescriptors()
	if err != nil {
		return err
	}
	const most = 12
	for range most {
		negatives.Forget(args[0])
		c, err := patient().Dial("tcp", args[0])
		var call *os.SyscallError
		switch {
		case errors.As(err, &call):
			fmt.Println(call.Err)
		case err != nil:
			fmt.Println(err)
		default:
			if err := useEcho(c); err != nil {
				fmt.Println("use of", typeName(c)+":", err)
			} else if _, ok := c.(*Conn); ok {
				fmt.Println(typeName(c))
			} else {
				told := Explain(args[0])
				fmt.Println(typeName(c), told[len(told)-1].Reason)
			}
			c.Close()
		}
		for len(liveSessions.list()) > 0 { // ended by going idle
			hang.Pause()
		}
		unix.Close(taken[0])
		taken = taken[1:]
	}
	fmt.Println("done")
	return nil
}
