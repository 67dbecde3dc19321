package rnet

import (
	"context"
	"errors"
	"net"
	"net/http/httptrace"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/internal/leak"
	"github.com/seed-b9b531af/ramjet/rnet/internal/mux"
)

// nobodyElse fails if the listener has another connection. What a dial does it
// has done before it returns.
func nobodyElse(t testing.TB, ln net.Listener) {
	t.Helper()
	const grace = 20 * time.Millisecond // for the listener's goroutines
	require.NoError(t, ln.(interface{ SetDeadline(time.Time) error }).SetDeadline(time.Now().Add(grace)))
	c, err := ln.Accept()
	if err == nil {
		t.Errorf("one more connection, from %v", c.RemoteAddr())
		c.Close()
	}
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, ln.(interface{ SetDeadline(time.Time) error }).SetDeadline(time.Time{}))
}

// listenBoth listens at one port of ::1 and of 127.0.0.1, by one function each.
func listenBoth(t *testing.T, at6, at4 func(network, address string) (net.Listener, error)) (ln6, ln4 net.Listener, port string) {
	for range 20 {
		var err error
		ln6, err = at6("tcp", "[::1]:0")
		require.NoError(t, err)
		_, port, err = net.SplitHostPort(ln6.Addr().String())
		require.NoError(t, err)
		if ln4, err = at4("tcp", "127.0.0.1:"+port); err == nil {
			t.Cleanup(func() { ln6.Close(); ln4.Close() })
			return ln6, ln4, port
		}
		ln6.Close()
	}
	t.Fatal("no port is free at both addresses")
	return nil, nil, ""
}

func TestDialLeadsToTheServerThatPackageNetReaches(t *testing.T) {
	for name, listen := range map[string][2]func(string, string) (net.Listener, error){
		"plain at ::1, streams at 127.0.0.1": {net.Listen, Listen},
		"streams at ::1, plain at 127.0.0.1": {Listen, net.Listen},
		"streams at both":                    {Listen, Listen},
	} {
		t.Run(name, func(t *testing.T) {
			ln6, ln4, port := listenBoth(t, listen[0], listen[1])
			for _, address := range []string{"localhost:" + port, "[::]:" + port, "0.0.0.0:" + port, ":" + port} {
				for _, network := range []string{"tcp", "tcp4", "tcp6"} {
					want, wantErr := net.Dial(network, address)
					got, err := (&Dialer{HeadStart: hang.Time}).Dial(network, address)
					if wantErr != nil {
						require.Error(t, err, "%s %s", network, address)
						continue
					}
					require.NoError(t, err, "%s %s", network, address)
					ip := want.RemoteAddr().(*net.TCPAddr).IP
					require.Equal(t, ip.String(), got.RemoteAddr().(*net.TCPAddr).IP.String(), "%s %s", network, address)
					ln := ln4
					if ip.To4() == nil {
						ln = ln6
					}
					for range 2 { // the one of package net, and ours
						s, err := ln.Accept()
						require.NoError(t, err)
						s.Close()
					}
					got.Close()
					want.Close()
				}
			}
			nobodyElse(t, ln4)
			nobodyElse(t, ln6)
		})
	}
}

// Package net connects to it, and hands on an address that netip does not parse.
func TestDialToAnIPv4AddressWithAZoneGoesOverTCP(t *testing.T) {
	ln, err := Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	_, port, err := net.SplitHostPort(ln.Addr().String())
	require.NoError(t, err)
	for range 2 {
		c, err := Dial("tcp", "[::ffff:127.0.0.1%lo]:"+port)
		require.NoError(t, err)
		require.IsType(t, new(net.TCPConn), c)
		require.NoError(t, c.Close())
	}
}

// A program's Control may take the time that there is for the dial, or end the dial.
func TestDialThatEndsInControlFailsAsWithPackageNet(t *testing.T) {
	ln := carrier{}.listen(t)
	for name, c := range map[string]struct {
		timeout time.Duration
		cancels bool
	}{
		"canceled": {0, true},
		"late":     {5 * time.Millisecond, false},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), hang.Time)
			defer cancel()
			d := Dialer{Timeout: c.timeout, ControlContext: func(dial context.Context, _, _ string, _ syscall.RawConn) error {
				if c.cancels {
					cancel()
				}
				<-dial.Done()
				return nil
			}}
			_, err := d.DialContext(ctx, "tcp", ln.Addr().String())
			_, want := (&net.Dialer{Timeout: -c.timeout}).DialContext(ctx, "tcp", ln.Addr().String())
			require.Equal(t, want, err)
		})
	}
}

func TestOneDialIsOneConnection(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "localhost", "[::]", "0.0.0.0", ""} {
		ln := carrier{}.listen(t)
		_, port, err := net.SplitHostPort(ln.Addr().String())
		require.NoError(t, err)
		for i, headStart := range []time.Duration{hang.Time, -1, time.Microsecond} {
			// sessions of its own
			d := Dialer{HeadStart: headStart, Limits: Limits{Window: mux.MinWindow << i}}
			for range 4 {
				c, err := d.Dial("tcp", host+":"+port)
				require.NoError(t, err)
				s, err := ln.Accept()
				require.NoError(t, err)
				require.Equal(t, c.LocalAddr().String(), s.RemoteAddr().String())
				nobodyElse(t, ln)
				c.Close()
				s.Close()
				negatives.Forget(host + ":" + port)
			}
		}
	}
	awaitNoSessions(t)
}

// calls are what a trace was told.
type calls struct {
	mu   sync.Mutex
	list []string
}

func (c *calls) traced(ctx context.Context) context.Context {
	note := func(what string) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.list = append(c.list, what)
	}
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		ConnectStart: func(network, addr string) { note("start " + network + " " + addr) },
		ConnectDone: func(network, addr string, err error) {
			if err != nil {
				var op *net.OpError
				if errors.As(err, &op) {
					err = op.Err
				}
				note("done " + network + " " + addr + ": " + err.Error())
				return
			}
			note("done " + network + " " + addr)
		},
	})
}

func TestTraceIsToldOfConnectionsAsByPackageNet(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "localhost", ""} {
		ln := carrier{}.listen(t)
		_, port, err := net.SplitHostPort(ln.Addr().String())
		require.NoError(t, err)
		address := host + ":" + port
		plain := func() []string {
			var want calls
			c, err := new(net.Dialer).DialContext(want.traced(t.Context()), "tcp4", address)
			require.NoError(t, err)
			c.Close()
			return want.list
		}()
		for _, d := range []Dialer{{HeadStart: hang.Time}, {Transport: Soft}} {
			for _, what := range []string{"a new session", "a session that lives"} {
				var got calls
				c, err := d.DialContext(got.traced(t.Context()), "tcp4", address)
				require.NoError(t, err)
				defer c.Close()
				require.IsType(t, (*Conn)(nil), c)
				if host == "" { // package net does not say which address of this host it is
					require.Len(t, got.list, len(plain))
					continue
				}
				require.Equal(t, plain, got.list, "%s, %s", what, d.Transport)
			}
		}
	}
	var want, got calls
	nobody := closedAddress(t)
	_, err := new(net.Dialer).DialContext(want.traced(t.Context()), "tcp", nobody)
	require.Error(t, err)
	_, err = new(Dialer).DialContext(got.traced(t.Context()), "tcp", nobody)
	require.Error(t, err)
	require.Equal(t, want.list, got.list)
}

func TestTraceIsNotToldOfServersOfNames(t *testing.T) {
	var asked atomic.Bool
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		asked.Store(true)
		return new(net.Dialer).DialContext(ctx, "tcp", "127.0.0.1:1")
	}}
	const address = "name.example:1"
	_, err := (&net.Dialer{Resolver: resolver}).DialContext(t.Context(), "tcp", address)
	require.Error(t, err)
	if !asked.Swap(false) {
		t.Skip("this system asks no server for names")
	}
	var got calls
	_, err = (&Dialer{Transport: Soft, Resolver: resolver}).DialContext(got.traced(t.Context()), "tcp", address)
	require.Error(t, err)
	require.True(t, asked.Load())
	require.Empty(t, got.list, "the server of names is nothing that was dialed")
}

// Each of the dials needs a session of its own, on both sides. None goes without
// because there are so many.
func TestStormOfDialsLeavesNoneOnTCP(t *testing.T) {
	leak.Check(t)
	ln := carrier{}.listen(t)
	address := ln.Addr().String()
	d := Dialer{Dedicated: true, HeadStart: hang.Time, Limits: Limits{RingSize: minRingSize}}
	dials := orRaced(200, 80) // more than maxSetUps
	served := hang.Start(t, func() {
		for range dials {
			s, err := ln.Accept()
			if err != nil {
				t.Error(err)
				return
			}
			defer s.Close()
		}
	})
	var work sync.WaitGroup
	var overTCP atomic.Int32
	begin := make(chan struct{})
	for range dials {
		work.Go(func() {
			<-begin
			c, err := d.Dial("tcp", address)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			if _, ok := c.(*Conn); !ok {
				overTCP.Add(1)
			}
		})
	}
	close(begin)
	work.Wait()
	served()
	if n := overTCP.Load(); n > 0 {
		t.Errorf("%d of %d dials went over TCP: %+v", n, dials, Explain(address))
	}
	_, remembered := negatives.Recall(address)
	require.False(t, remembered)
	require.Zero(t, setUps.Inside())
}

// stopPolling keeps a session from taking in what arrives. What it returns ends that, and
// so does the end of the test.
func stopPolling(t testing.TB, s *session) (goOn func()) {
	stopped, end := make(chan struct{}), make(chan struct{})
	await := hang.Start(t, func() {
		for !s.mux.PollLock().Do(func() { // somebody else may have the lock
			close(stopped)
			<-end // ended by goOn
		}) {
			time.Sleep(time.Millisecond)
		}
	})
	<-stopped
	goOn = sync.OnceFunc(func() {
		close(end)
		await()
	})
	t.Cleanup(goOn)
	return goOn
}

// A burst of dials on a session that has lived for long, while the listener is slow
// to give addresses to more streams: the head start begins with the dial.
func TestDialsWaitForAddressesOnAnOldSession(t *testing.T) {
	leak.Check(t)
	ln := carrier{}.listen(t)
	address := ln.Addr().String()
	d := Dialer{HeadStart: hang.Time}
	first, err := d.Dial("tcp", address)
	require.NoError(t, err)
	defer first.Close()
	require.IsType(t, (*Conn)(nil), first)
	accepted, err := ln.Accept()
	require.NoError(t, err)
	defer accepted.Close()
	s := first.(*Conn).s
	pool.mu.Lock()
	aged := 0
	for _, ps := range pool.sessions {
		if ps.s == s {
			ps.begun = ps.begun.Add(-100 * hang.Time)
			aged++
		}
	}
	pool.mu.Unlock()
	require.Equal(t, 1, aged)

	goOn := stopPolling(t, accepted.(*Conn).s)
	const beyond = 20
	slots := s.mux.Slots() // fewer than usual, where other tests have used up ports
	dials := slots - 1 + beyond
	served := hang.Start(t, func() {
		for range dials {
			c, err := ln.Accept()
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
		}
	})
	var work sync.WaitGroup
	var overTCP atomic.Int32
	for range dials {
		work.Go(func() {
			c, err := d.Dial("tcp", address)
			if err != nil {
				t.Error(err)
				return
			}
			// not before all have theirs: they would share an address
			t.Cleanup(func() { c.Close() })
			if _, ok := c.(*Conn); !ok {
				overTCP.Add(1)
			}
		})
	}
	hang.Eventually(t, "only dials that wait for an address are left", func() bool {
		return s.mux.Len() == slots || s.mux.Err() != nil
	})
	require.NoError(t, s.mux.Err())
	goOn()
	work.Wait()
	served()
	require.Zero(t, overTCP.Load(), "of %d dials: %+v", dials, Explain(address))
}

// Where the listener gives no more addresses for as long as the dial could wait, TCP has its half
// of the time.
func TestADialThatWaitsForAnAddressLeavesTimeForTCP(t *testing.T) {
	leak.Check(t)
	dialed, accepted := carrier{}.streams(t)
	goOn := stopPolling(t, accepted.s)
	address := dialed.RemoteAddr().String()
	for dialed.s.mux.Len() < dialed.s.mux.Slots() {
		c, err := Dial("tcp", address)
		require.NoError(t, err)
		defer c.Close()
	}
	c, err := (&Dialer{HeadStart: hang.Time, Timeout: 2 * time.Second}).Dial("tcp", address)
	require.NoError(t, err)
	require.IsType(t, (*net.TCPConn)(nil), c)
	c.Close()
	goOn()
}

func TestADialWithoutATimeLimitDoesNotWaitForAnAddressForEver(t *testing.T) {
	leak.Check(t)
	dialed, accepted := overSoft.streams(t)
	goOn := stopPolling(t, accepted.s)
	address := dialed.RemoteAddr().String()
	for dialed.s.mux.Len() < dialed.s.mux.Slots() {
		c, err := overSoft.dialer().Dial("tcp", address)
		require.NoError(t, err)
		defer c.Close()
	}
	defer func(usual time.Duration) { setUpTime = usual }(setUpTime)
	setUpTime = 10 * time.Millisecond
	hang.Start(t, func() {
		_, err := overSoft.dialer().Dial("tcp", address)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, fallback.Admission, fallback.Classify(err))
	})()
	goOn()
}

// A listener that takes no more requests for now is asked again.
func TestFullListenerIsAskedAgain(t *testing.T) {
	for range maxSetUps {
		require.NoError(t, accepting.enter(t.Context()))
	}
	ln := carrier{}.listen(t)
	address := ln.Addr().String()
	waiting := hang.Start(t, func() {
		d := Dialer{HeadStart: hang.Time}
		c, err := d.Dial("tcp", address)
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		if _, ok := c.(*Conn); !ok {
			t.Errorf("a %T: %+v", c, Explain(address))
		}
	})
	hang.Eventually(t, "the request has come", func() bool {
		return ln.(*Listener).onFabrics()[0].Stats().Requests > 0
	})
	for range maxSetUps {
		accepting.work.Leave()
	}
	waiting()
}

// A client that dials all the time, while its server starts again and again, is
// not left with TCP.
func TestRestartsOfAServerDoNotLeadToTCP(t *testing.T) {
	address := closedAddress(t)
	negatives.Forget(address)
	var streams, overTCP, refused atomic.Int32
	stop := make(chan struct{})
	var dialing sync.WaitGroup
	for range 2 {
		dialing.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				c, err := (&Dialer{HeadStart: hang.Time}).Dial("tcp", address)
				switch c.(type) {
				case *Conn:
					streams.Add(1)
				case *net.TCPConn:
					overTCP.Add(1)
				default:
					refused.Add(1)
				}
				if err == nil {
					c.Close()
				}
			}
		})
	}
	for range times(30, 300) {
		ln, err := Listen("tcp", address)
		require.NoError(t, err)
		serving := hang.Start(t, func() {
			for { // ended by Close
				s, err := ln.Accept()
				if err != nil {
					return
				}
				s.Close()
			}
		})
		before := streams.Load()
		hang.Eventually(t, "a stream to the new listener", func() bool { return streams.Load() > before+10 })
		require.NoError(t, ln.Close())
		serving()
	}
	close(stop)
	dialing.Wait()
	t.Logf("%d streams, %d over TCP, %d refused", streams.Load(), overTCP.Load(), refused.Load())
	require.Less(t, overTCP.Load(), streams.Load()/20)
	reason, remembered := negatives.Recall(address)
	require.False(t, remembered && !reason.Nothing(), reason)
}

// awaitStep waits until a set-up, which dials need not have waited for, has come to a step.
func awaitStep(t *testing.T, what string, is func(at *step) bool) {
	t.Helper()
	hang.Eventually(t, what, func() bool {
		pool.mu.Lock()
		defer pool.mu.Unlock()
		for _, ps := range pool.sessions {
			if is(ps.step.Load()) {
				return true
			}
		}
		return false
	})
}

// A dial whose session takes longer than its head start goes over TCP, and so do
// not all dials after it.
func TestSlowSetUpIsNotAskedForAgainAndAgain(t *testing.T) {
	for range maxSetUps {
		require.NoError(t, setUps.Enter(t.Context()))
	}
	ln := carrier{}.listen(t)
	address := ln.Addr().String()
	d := Dialer{HeadStart: time.Millisecond}
	for range 2 {
		c, err := d.Dial("tcp", address)
		require.NoError(t, err)
		require.IsType(t, (*net.TCPConn)(nil), c)
		c.Close()
		awaitStep(t, "the set-up is in the queue", func(at *step) bool { return at.queue != nil })
	}
	for range maxSetUps {
		setUps.Leave()
	}
	told := Explain(address)
	require.Equal(t, fallback.Admission.String(), told[len(told)-1].Reason)
	hang.Eventually(t, "the session has come about, and is used", func() bool {
		c, err := d.Dial("tcp", address)
		require.NoError(t, err)
		defer c.Close()
		_, ok := c.(*Conn)
		return ok
	})
}
