package rnet

import (
	"errors"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/kernelcm"
	"github.com/seed-b9b531af/ramjet/rcm/softcm"
)

// streamTo dials until it gets a stream, and returns the one of the listeners'
// ends that it has.
func streamTo(t *testing.T, ln net.Listener) (dialed, accepted net.Conn) {
	t.Helper()
	hang.Eventually(t, "a stream", func() bool {
		negatives.Forget(ln.Addr().String()) // or dials fill TCP's backlog for as long as it remembers
		c, err := (&Dialer{HeadStart: hang.Time}).Dial("tcp", ln.Addr().String())
		require.NoError(t, err)
		if _, ok := c.(*Conn); !ok {
			c.Close()
			return false
		}
		dialed = c
		return true
	})
	for {
		s, err := ln.Accept()
		require.NoError(t, err)
		if _, ok := s.(*Conn); ok {
			return dialed, s
		}
		s.Close() // of a dial that came before the listener had the name
	}
}

// A new process of a server takes the port while the old one still has it. When
// the old one stops accepting, dials lead to the new one, over the same transport.
func TestListenerThatSharesThePortIsNextInLine(t *testing.T) {
	address := closedAddress(t)
	share := &ListenConfig{Control: setting(unix.SO_REUSEPORT, 1)}
	old, err := share.Listen(t.Context(), "tcp", address)
	require.NoError(t, err)
	for range 5 {
		c, s := streamTo(t, old)
		next, err := share.Listen(t.Context(), "tcp", address)
		require.NoError(t, err)
		t.Cleanup(func() { next.Close() })
		again, served := streamTo(t, old) // whoever has it keeps it
		require.NoError(t, old.Close())
		after, servedNext := streamTo(t, next)
		for _, end := range []net.Conn{c, s, again, served, after, servedNext} {
			_, err := end.Write([]byte{1}) // the old ones drain
			require.NoError(t, err)
			defer end.Close()
		}
		old = next
	}
}

// What cannot be had when a server starts may be had later.
func TestListenerTakesANameThatBecomesFree(t *testing.T) {
	address := closedAddress(t)
	negatives.Forget(address)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Bind(fd, &unix.SockaddrUnix{Name: "@ramjet/rcm2/" + address}))
	ln, err := Listen("tcp", address)
	require.NoError(t, err)
	defer ln.Close()
	c, err := Dial("tcp", address)
	require.NoError(t, err)
	require.IsType(t, (*net.TCPConn)(nil), c)
	c.Close()
	require.NoError(t, unix.Close(fd))
	c, s := streamTo(t, ln)
	c.Close()
	s.Close()
	closing := make(chan error)
	other, err := (&ListenConfig{Control: setting(unix.SO_REUSEPORT, 1)}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer other.Close()
	waits, err := (&ListenConfig{Control: setting(unix.SO_REUSEPORT, 1)}).Listen(t.Context(), "tcp", other.Addr().String())
	require.NoError(t, err)
	go func() { closing <- waits.Close() }() // ends although it waits for the name
	require.NoError(t, <-closing)
}

// goroutineStacks returns the stacks of all goroutines in which this module's code is,
// but for those of tests.
func goroutineStacks() (stacks []string) {
	buf := make([]byte, 4<<20)
	for _, stack := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(stack, "seed-b9b531af/ramjet/") && !strings.Contains(stack, "_test.go") {
			stacks = append(stacks, stack)
		}
	}
	return stacks
}

// fabricsToo are the software HCA's fabric and the kernel's at other ports: other kinds
// of devices, for all that a listener knows.
func fabricsToo(shift uint16) []fabric {
	other := func(port uint16) uint16 { return port ^ shift }
	return []fabric{
		{fallback.Soft, softcm.New(softcm.Config{}), other},
		{fallback.RDMA, kernelcm.New(kernelcm.Config{Transports: ownPorts}), other},
	}
}

// Listeners that serve nobody have one goroutine together, with devices of the kernel
// two, for any number of them and of fabrics, and none after the last is closed.
func TestIdleListenersShareTheirGoroutines(t *testing.T) {
	want := []string{"samehost.(*watcher).run"}
	if kernelCarriers() != nil {
		want = append(want, "kernelcm.(*ucmFile).read")
	}
	hang.Eventually(t, "what other tests have left ends", func() bool { return len(goroutineStacks()) == 0 })
	all := fabrics
	defer func() { fabrics = all }()
	var listeners []net.Listener
	for _, few := range [][]fabric{all, slices.Concat(fabricsToo(1), fabricsToo(2), all), append(fabricsToo(4), all...)} {
		fabrics = few
		for _, address := range []string{"127.0.0.1:0", ":0"} {
			ln, err := Listen("tcp", address)
			require.NoError(t, err)
			defer ln.Close() // if the test fails
			listeners = append(listeners, ln)
		}
	}
	hang.Eventually(t, "the goroutines are those of the process, and have begun", func() bool {
		stacks := goroutineStacks()
		all := strings.Join(stacks, "\n\n")
		return len(stacks) == len(want) && !slices.ContainsFunc(want, func(f string) bool { return !strings.Contains(all, f) })
	})
	// Those who accept are the caller's own.
	c, err := Dial("tcp", listeners[0].Addr().String())
	require.NoError(t, err)
	s, err := listeners[0].Accept()
	require.NoError(t, err)
	c.Close()
	s.Close()
	for _, ln := range listeners {
		require.NoError(t, ln.Close())
	}
	hang.Eventually(t, "no goroutine", func() bool { return len(goroutineStacks()) == 0 })
}

// Streams, TCP peers, deadlines and Close find whoever accepts, however many do.
func TestAcceptIsFoundByWhateverComes(t *testing.T) {
	ln := carrier{}.listen(t).(*Listener)
	address := ln.Addr().String()
	const accepters, each = 3, 50
	var mu sync.Mutex
	streams, overTCP := 0, 0
	var work sync.WaitGroup
	for range accepters {
		work.Go(func() {
			for {
				c, err := ln.Accept() // ended by a peer, Close
				if errors.Is(err, net.ErrClosed) {
					return
				}
				if errors.Is(err, os.ErrDeadlineExceeded) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if _, ok := c.(*Conn); ok {
					streams++
				} else {
					overTCP++
				}
				mu.Unlock()
				c.Close()
			}
		})
	}
	var dials sync.WaitGroup
	dials.Go(func() {
		for range each {
			c, err := Dial("tcp", address)
			if err != nil {
				t.Error(err)
				return
			}
			c.Read(make([]byte, 1)) // ended by the Close of the other end
			c.Close()
		}
	})
	dials.Go(func() {
		for range each {
			c, err := net.Dial("tcp", address)
			if err != nil {
				t.Error(err)
				return
			}
			c.Read(make([]byte, 1)) // the same
			c.Close()
		}
	})
	dials.Go(func() {
		for range each {
			ln.SetDeadline(time.Now())
			ln.SetDeadline(time.Time{})
		}
	})
	dials.Wait()
	require.NoError(t, ln.Close())
	work.Wait()
	require.Equal(t, 2*each, streams+overTCP)
	require.GreaterOrEqual(t, overTCP, each)
	require.NotZero(t, streams)
}

// A server that is started anew as soon as Accept has failed has to find its address free.
func TestAcceptFailsWhenTheAddressIsFree(t *testing.T) {
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var l *Listener
	freed := 0
	freeing := func() {
		freed++
		_, err := l.pop()
		assert.NoError(t, err, "an Accept that looks now")
	}
	ln, err := NewListener(&tcpBeingClosed{plain.(*net.TCPListener), freeing})
	require.NoError(t, err)
	l = ln.(*Listener)
	l.mu.Lock()
	for i, one := range l.fabrics {
		l.fabrics[i] = &fabricBeingClosed{one, freeing}
	}
	l.mu.Unlock()
	c, accepted := streamTo(t, ln) // their session is retired
	defer c.Close()
	defer accepted.Close()
	await := hang.Start(t, func() {
		_, err := ln.Accept()
		assert.ErrorIs(t, err, net.ErrClosed)
	})
	require.NoError(t, ln.Close())
	await()
	require.Equal(t, 1+len(l.fabrics), freed)
}

// tcpBeingClosed and fabricBeingClosed tell when they are about to be closed.
type tcpBeingClosed struct {
	*net.TCPListener
	tell func()
}

func (b *tcpBeingClosed) Close() error {
	b.tell()
	return b.TCPListener.Close()
}

type fabricBeingClosed struct {
	rcm.Listener
	tell func()
}

func (b *fabricBeingClosed) Close() error {
	b.tell()
	return b.Listener.Close()
}

func TestErrorsOfAClosedListenerAreThoseOfPackageNet(t *testing.T) {
	plain, err := net.Listen("tcp", closedAddress(t))
	require.NoError(t, err)
	require.NoError(t, plain.Close())
	ln, err := Listen("tcp", plain.Addr().String())
	require.NoError(t, err)
	require.NoError(t, ln.Close())
	for _, call := range []func(net.Listener) error{
		func(ln net.Listener) error { _, err := ln.Accept(); return err },
		func(ln net.Listener) error { _, err := ln.(interface{ File() (*os.File, error) }).File(); return err },
		net.Listener.Close,
	} {
		require.Equal(t, call(plain), call(ln))
	}
}

func TestWhatAListenerCountsOutlivesTheLossOfATransport(t *testing.T) {
	lc := ListenConfig{Transport: Soft, Peers: func(PeerProcess) bool { return false }}
	listener, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ln := listener.(*Listener)
	defer ln.Close()
	denied := func() bool {
		_, err := overSoft.dialer().Dial("tcp", ln.Addr().String())
		require.Error(t, err)
		return fallback.Classify(err) == fallback.PeerDenied
	}
	require.True(t, denied())
	require.EqualValues(t, 1, ln.readStats().Denied)
	require.NoError(t, ln.onFabrics()[0].Close())
	hang.Eventually(t, "dials lead to the listener again", denied)
	require.EqualValues(t, 2, ln.readStats().Denied)
}

// A set-up may take seconds, in which there is no session.
func TestASessionIsOpenedWhenItIsConnected(t *testing.T) {
	awaitNoSessions(t)
	var asked atomic.Pointer[time.Time]
	lc := ListenConfig{Transport: Soft, Peers: func(PeerProcess) bool {
		now := time.Now()
		asked.Store(&now)
		return true
	}}
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	overSoft.connect(t, ln)
	sessions := ReadStats().Sessions
	require.Len(t, sessions, 2)
	for _, st := range sessions {
		require.False(t, st.Opened.Before(*asked.Load()), "dialed: %v", st.Dialed)
	}
}
