package rnet

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/internal/freeport"
	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/internal/leak"
	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
)

// The errors of Dial and Listen are those of package net, word for word.
func TestBadAddressesGiveTheErrorsOfPackageNet(t *testing.T) {
	for _, tc := range []struct{ network, address string }{
		{"tcp7", "127.0.0.1:80"},
		{"", "127.0.0.1:80"},
		{"tcp", "127.0.0.1"},
		{"tcp", "127.0.0.1:http:80"},
		{"tcp", "127.0.0.1:no-such-service"},
		{"tcp", "127.0.0.1:65536"},
		{"tcp", "[::1:80"},
		{"tcp4", "[::1]:80"},
		{"tcp6", "127.0.0.1:80"},
		{"tcp", ""},
	} {
		t.Run(tc.network+" "+tc.address, func(t *testing.T) {
			_, want := net.Dial(tc.network, tc.address)
			require.Error(t, want)
			_, got := Dial(tc.network, tc.address)
			require.EqualError(t, got, want.Error())
			require.Equal(t, want, got)

			_, want = net.Listen(tc.network, tc.address)
			ln, got := Listen(tc.network, tc.address)
			if want == nil {
				require.NoError(t, got)
				ln.Close()
				return
			}
			require.EqualError(t, got, want.Error())
		})
	}
}

func TestForcedTransportTellsWhyAnAddressIsBad(t *testing.T) {
	d := Dialer{Transport: Soft, Resolver: &net.Resolver{PreferGo: true, Dial: func(_ context.Context, network, _ string) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: network, Err: context.Canceled}
	}}}
	for _, address := range []string{"127.0.0.1", "127.0.0.1:no-such-service", "[::1:80", "name.example:80"} {
		_, err := d.Dial("tcp", address)
		var op *net.OpError
		require.ErrorAs(t, err, &op, address)
		require.Equal(t, "dial", op.Op)
		require.Equal(t, "tcp", op.Net)
		require.False(t, op.Timeout())
	}
}

func TestOtherNetworksGoToPackageNet(t *testing.T) {
	c, err := Dial("udp", "127.0.0.1:9")
	require.NoError(t, err)
	require.IsType(t, (*net.UDPConn)(nil), c)
	c.Close()
}

func TestDialToNobodyIsRefused(t *testing.T) {
	address := closedAddress(t)
	for _, transport := range []Transport{Auto, Soft, TCP} {
		_, err := (&Dialer{Transport: transport}).Dial("tcp", address)
		require.ErrorIs(t, err, syscall.ECONNREFUSED, transport)
		var op *net.OpError
		require.ErrorAs(t, err, &op)
		require.Equal(t, "dial", op.Op)
	}
}

func TestForcedTransportSaysWhyItCannotBeHad(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	_, err = (&Dialer{Transport: Soft}).Dial("tcp", ln.Addr().String())
	require.ErrorContains(t, err, "transport soft")
	require.ErrorContains(t, err, "no-listener")
	_, err = (&Dialer{Transport: RDMA}).Dial("tcp", ln.Addr().String())
	require.ErrorContains(t, err, "transport rdma")
	_, err = (&ListenConfig{Transport: RDMA}).Listen(ctxBackground, "tcp", "127.0.0.1:0")
	require.ErrorContains(t, err, "transport rdma")
	_, err = (&Dialer{Transport: "carrier pigeon"}).Dial("tcp", ln.Addr().String())
	require.ErrorContains(t, err, "carrier pigeon")

	last := Explain(ln.Addr().String())
	require.NotEmpty(t, last)
	require.Error(t, last[len(last)-1].Err)
	require.NotEmpty(t, last[len(last)-1].Meaning)
}

// The environment is read once, so another process shows what it does.
func TestEnvironmentForcesTheTransport(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	t.Setenv("RNET_TRANSPORT", "soft")
	child := roles.Start(t, "dial", ln.Addr().String())
	require.Contains(t, child.Line(t), "rnet: transport soft: ")
	child.Stop()
	t.Setenv("RNET_TRANSPORT", "tcp")
	child = roles.Start(t, "dial", ln.Addr().String())
	require.Equal(t, "*net.TCPConn", child.Line(t))
	child.Stop()
	t.Setenv("RNET_TRANSPORT", "pigeon")
	child = roles.Start(t, "dial", ln.Addr().String())
	require.Contains(t, child.Line(t), "RNET_TRANSPORT")
}

func TestEndedContextDialsNothing(t *testing.T) {
	over(t, []carrier{overTCP, overSoft, {name: "auto"}}, func(t *testing.T, k carrier) {
		ln := k.listen(t)
		d := k.dialer()
		for _, live := range []bool{false, true} {
			if live { // a session that could be used at once
				c, s := k.connect(t, ln)
				defer c.Close()
				defer s.Close()
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			_, err := d.DialContext(ctx, "tcp", ln.Addr().String())
			require.ErrorIs(t, err, context.Canceled)
			ctx, cancel = context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
			_, err = d.DialContext(ctx, "tcp", ln.Addr().String())
			cancel()
			var timeout net.Error
			require.ErrorAs(t, err, &timeout)
			require.True(t, timeout.Timeout())
			_, err = (&Dialer{Transport: k.transport, Deadline: time.Now().Add(-time.Second)}).Dial("tcp", ln.Addr().String())
			require.ErrorAs(t, err, &timeout)
			require.True(t, timeout.Timeout(), "%v", err)
			_, err = (&Dialer{Transport: k.transport, Timeout: -1}).Dial("tcp", ln.Addr().String())
			require.ErrorAs(t, err, &timeout)
			require.True(t, timeout.Timeout(), "%v", err)
		}
	})
}

func TestDialTimeoutConnects(t *testing.T) {
	ln := carrier{}.listen(t)
	c, err := DialTimeout("tcp", ln.Addr().String(), time.Minute)
	require.NoError(t, err)
	require.NoError(t, c.Close())
}

func TestSocketOptionsMakeADialGoOverTCP(t *testing.T) {
	ln := carrier{}.listen(t)
	d := Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}}
	c, err := d.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	require.IsType(t, (*net.TCPConn)(nil), c)
	last := Explain(ln.Addr().String())
	require.Equal(t, TCP, last[len(last)-1].Transport)
	require.Equal(t, "socket-options", last[len(last)-1].Reason)
}

func TestNamesAreResolved(t *testing.T) {
	ln := overSoft.listen(t)
	_, port, err := net.SplitHostPort(ln.Addr().String())
	require.NoError(t, err)
	for _, host := range []string{"localhost", ""} {
		c, err := (&Dialer{Transport: Soft}).Dial("tcp4", net.JoinHostPort(host, port))
		require.NoError(t, err, "host %q", host)
		s, err := ln.Accept()
		require.NoError(t, err)
		c.Close()
		s.Close()
	}
}

// To package net [::] is this host, also where that is reached by IPv4 only.
func TestNoAddressOfIPv6IsThisHost(t *testing.T) {
	ln := overSoft.listen(t)
	_, port, err := net.SplitHostPort(ln.Addr().String())
	require.NoError(t, err)
	for _, network := range []string{"tcp", "tcp4"} {
		c, err := overSoft.dialer().Dial(network, "[::]:"+port)
		require.NoError(t, err, network)
		s, err := ln.Accept()
		require.NoError(t, err)
		require.Equal(t, ln.Addr().String(), c.RemoteAddr().String())
		c.Close()
		s.Close()
	}
	_, err = overSoft.dialer().Dial("tcp6", "[::]:"+port)
	require.Equal(t, fallback.NoListener, fallback.Classify(err))
}

func TestDialedAddressesAreNotRemembered(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	c, err := Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	c.Close()
	pool.quickest.Range(func(key, _ any) bool {
		require.NotEqual(t, ln.Addr().String(), key.(poolKey).address, "a dial that found no session is kept in the pool")
		return true
	})
}

// Each Resolver may make something else of an address, and programs make one for each dial.
func TestDialsInManyWordsOverOneSessionAreNotAllRemembered(t *testing.T) {
	ln := overSoft.listen(t)
	overSoft.connect(t, ln) // so that the session stays
	for range 3 * mostSets {
		d := overSoft.dialer()
		d.Resolver = new(net.Resolver)
		c, err := d.Dial("tcp", ln.Addr().String())
		require.NoError(t, err)
		c.Close()
		s, err := ln.Accept()
		require.NoError(t, err)
		s.Close()
	}
	kept := 0
	pool.quickest.Range(func(any, any) bool {
		kept++
		return true
	})
	require.LessOrEqual(t, kept, mostSets)
}

func TestLanesSpreadStreamsOverSessions(t *testing.T) {
	ln := overSoft.listen(t)
	d := Dialer{Transport: Soft, Lanes: 3}
	sessions := make(map[*session]int)
	for range 9 {
		c, err := d.Dial("tcp", ln.Addr().String())
		require.NoError(t, err)
		defer c.Close()
		sessions[c.(*Conn).s]++
	}
	require.Len(t, sessions, 3)
	for _, n := range sessions {
		require.Equal(t, 3, n)
	}
}

// closedAddress returns a loopback address where nobody listens.
func closedAddress(t testing.TB) string {
	t.Helper()
	return closedAddressOf(t, "127.0.0.1")
}

// closedAddressOf returns an address of a host where nobody listens.
func closedAddressOf(t testing.TB, host string) string {
	t.Helper()
	address, err := freeport.Address(host)
	require.NoError(t, err)
	return address
}

func init() { roles.Add("dial", dialOnce) }

// dialOnce dials an address with what the environment says and prints the type
// of the connection, or the error.
func dialOnce(args []string) error {
	c, err := Dial("tcp", args[0])
	if err != nil {
		_, err = os.Stdout.WriteString(err.Error() + "\n")
		return err
	}
	_, err = os.Stdout.WriteString(typeName(c) + "\n")
	return errors.Join(err, c.Close())
}

// greet tells each of a number of connections whom it has reached, and who it is there.
func greet(t *testing.T, ln net.Listener, connections int) (await func()) {
	return hang.Start(t, func() {
		for range connections {
			s, err := ln.Accept()
			if !assert.NoError(t, err) {
				return
			}
			_, err = fmt.Fprintln(s, ln.Addr(), s.RemoteAddr())
			assert.NoError(t, err)
			assert.NoError(t, s.Close())
		}
	})
}

// greeted dials as a program does that sets nothing about time, and reports whether it
// got a stream.
func greeted(t *testing.T, d *Dialer, ln net.Listener) bool {
	c, err := d.Dial("tcp", ln.Addr().String())
	if !assert.NoError(t, err) {
		return false
	}
	defer c.Close()
	said, err := bufio.NewReader(c).ReadString('\n')
	assert.NoError(t, err)
	assert.Equal(t, fmt.Sprintln(ln.Addr(), c.LocalAddr()), said)
	_, stream := c.(*Conn)
	return stream
}

func TestALaneThatIsFullHidesNoOther(t *testing.T) {
	ln := overSoft.listen(t)
	d := Dialer{Transport: Soft, Lanes: 2, Limits: Limits{Streams: 1}}
	dial := func() *Conn {
		c, err := d.Dial("tcp", ln.Addr().String())
		require.NoError(t, err)
		s, err := ln.Accept()
		require.NoError(t, err)
		t.Cleanup(func() { s.Close() })
		require.IsType(t, (*Conn)(nil), c)
		return c.(*Conn)
	}
	first, second := dial(), dial()
	defer first.Close()
	require.NotEqual(t, first.s, second.s)
	for range 4 {
		require.NoError(t, second.Close())
		second = dial()
	}
	second.Close()
}

// However busy the machine is, a dial with the head start that dials have comes to its
// server once, and nothing but the end of that head start lets it go over TCP.
func TestDialsWithTheUsualHeadStartReachTheirServerOnce(t *testing.T) {
	leak.Check(t)
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer plain.Close()
	for _, d := range []*Dialer{{}, {Dedicated: true}} { // one session for all, and one for each
		for _, atOnce := range []int{1, 20} {
			dials := orRaced(200, 60)
			ln, begun := carrier{}.listen(t), time.Now()
			address, plainAddress := ln.Addr().String(), plain.Addr().String()
			negatives.Forget(address) // another test may have had the port
			negatives.Forget(plainAddress)
			served, servedPlain := greet(t, ln, dials), greet(t, plain, dials)
			var left, streams, plainStreams atomic.Int32
			left.Store(int32(dials))
			var work sync.WaitGroup
			for range atOnce {
				work.Go(func() {
					for left.Add(-1) >= 0 {
						if greeted(t, d, ln) {
							streams.Add(1)
						}
						if greeted(t, d, plain) {
							plainStreams.Add(1)
						}
					}
				})
			}
			work.Wait()
			served()
			servedPlain()
			nobodyElse(t, ln)
			nobodyElse(t, plain)
			t.Logf("dedicated %t, %d at once: %d of %d dials got streams", d.Dedicated, atOnce, streams.Load(), dials)
			require.Zero(t, plainStreams.Load())
			for _, told := range Explain(address) {
				if told.Reason != fallback.None.String() && told.Time.After(begun) {
					require.ErrorIs(t, told.Err, fallback.ErrTooSlow, "%+v", told)
				}
			}
			for _, told := range Explain(plainAddress) {
				if told.Time.After(begun) {
					require.Equal(t, fallback.NoListener.String(), told.Reason, "%+v", told)
				}
			}
			require.NoError(t, ln.Close())
		}
	}
}

// The session to the listener that was there a moment ago is still in the pool, and
// may have a word of its end to read.
func TestDialAfterARestartLeadsToTheNewListener(t *testing.T) {
	address := closedAddress(t)
	negatives.Forget(address)
	for range times(300, 2000) {
		ln, err := Listen("tcp", address)
		require.NoError(t, err)
		echoed := hang.Start(t, func() {
			s, err := ln.Accept()
			if err != nil {
				t.Error(err)
				return
			}
			defer s.Close()
			var b [1]byte
			if _, err = s.Read(b[:]); err == nil {
				_, err = s.Write(b[:])
			}
			if err != nil {
				t.Error(err)
			}
		})
		c, err := (&Dialer{HeadStart: hang.Time}).Dial("tcp", address)
		require.NoError(t, err)
		require.IsType(t, (*Conn)(nil), c)
		require.NoError(t, c.SetDeadline(time.Now().Add(hang.Time)))
		_, err = c.Write([]byte("x"))
		require.NoError(t, err)
		_, err = c.Read(make([]byte, 1))
		require.NoError(t, err, "from the new listener")
		require.NoError(t, c.Close())
		require.NoError(t, ln.Close())
		echoed()
	}
}
