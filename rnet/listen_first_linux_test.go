package rnet

import (
	"errors"
	"fmt"
	"net"
	"net/http/httptrace"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/internal/thread"
	"github.com/seed-b9b531af/ramjet/rnet/internal/attach"
	"github.com/seed-b9b531af/ramjet/rnet/internal/loop"
)

// reachable is an address at which a listener at the given one is reached.
func reachable(address string) string {
	if strings.HasPrefix(address, ":") {
		return "127.0.0.1" + address
	}
	return strings.Replace(strings.Replace(address, "0.0.0.0", "127.0.0.1", 1), "[::]", "[::1]", 1)
}

// Where a zone is written by its number, or says nothing, the address is that of the socket all the same.
func TestAddressOfAListenerHasTheZoneOfItsSocket(t *testing.T) {
	hosts := []string{"::1%lo", "::1%1"}
	all, err := net.Interfaces()
	require.NoError(t, err)
	for _, ifi := range all {
		addrs, _ := ifi.Addrs() // none if the interface has gone meanwhile
		for _, a := range addrs {
			n := a.(*net.IPNet)
			if n.IP.To4() != nil || !n.IP.IsLinkLocalUnicast() {
				continue
			}
			host := fmt.Sprintf("%v%%%s", n.IP, ifi.Name)
			ln, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
			if err != nil {
				continue // the kernel still looks whether another host has the address, say
			}
			ln.Close()
			hosts = append(hosts, host, fmt.Sprintf("%v%%%d", n.IP, ifi.Index))
		}
	}
	for _, host := range hosts {
		address := closedAddressOf(t, host)
		var lc net.ListenConfig
		lc.SetMultipathTCP(false) // of which the kernel does not tell the zone
		plain, err := lc.Listen(t.Context(), "tcp", address)
		require.NoError(t, err)
		require.NoError(t, plain.Close())
		ln, err := Listen("tcp", address)
		require.NoError(t, err)
		require.Equal(t, plain.Addr(), ln.Addr())
		require.NoError(t, ln.Close())
	}
}

func TestWhoFindsTheTCPListenerFindsTheOthersToo(t *testing.T) {
	for _, at := range []struct{ network, host string }{
		{"tcp", "127.0.0.1"}, {"tcp", "::1"}, {"tcp", ""}, {"tcp", "0.0.0.0"}, {"tcp", "::"},
		{"tcp4", ""}, {"tcp6", ""}, {"tcp", "localhost"},
	} {
		t.Run(at.network+" "+at.host, func(t *testing.T) {
			for range 20 {
				address := closedAddressOf(t, at.host)
				to := reachable(address)
				if at.network == "tcp6" {
					to = strings.Replace(to, "127.0.0.1", "[::1]", 1)
				}
				await := hang.Start(t, func() {
					for { // ended by the listener
						c, err := net.Dial("tcp", to)
						if err == nil {
							c.Close()
							break
						}
						if !assert.ErrorIs(t, err, syscall.ECONNREFUSED) {
							return
						}
					}
					c, err := overSoft.dialer().Dial("tcp", to)
					if assert.NoError(t, err) {
						c.Close()
					}
				})
				ln, err := Listen(at.network, address)
				require.NoError(t, err)
				plain, err := net.Listen(at.network, address)
				if err == nil {
					plain.Close()
				}
				require.ErrorIs(t, err, syscall.EADDRINUSE)
				await()
				require.NoError(t, ln.Close())
			}
		})
	}
}

// A dial while a server starts looks for its listener of streams right before it
// connects over TCP, and the server sees one connection.
func TestDialThatBeganBeforeTheListenerGetsAStream(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "127.0.0.2", "::1"} {
		address := closedAddressOf(t, host)
		negatives.Forget(address) // the port may have been another test's
		d := overSoft.dialer()
		d.Transport, d.HeadStart = Auto, hang.Time
		var ln net.Listener
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{ConnectStart: func(string, string) {
			var err error
			// for streams it was too late
			if ln, err = Listen("tcp", address); assert.NoError(t, err) {
				t.Cleanup(func() { ln.Close() })
			}
		}})
		c, err := d.DialContext(ctx, "tcp", address)
		require.NoError(t, err)
		defer c.Close()
		require.IsType(t, (*Conn)(nil), c)
		told := Explain(address)
		require.Equal(t, Soft, told[len(told)-1].Transport)
		s, err := ln.Accept()
		require.NoError(t, err)
		defer s.Close()
		require.IsType(t, (*Conn)(nil), s)
		nobodyElse(t, ln)
		_, err = c.Write([]byte{1})
		require.NoError(t, err)
		_, err = s.Read(make([]byte, 1))
		require.NoError(t, err)
	}
}

// A server that takes no streams yet, because its event loops do not run, does not hold
// up a dial that has TCP for longer than the head start.
func TestDialDoesNotWaitForAListenerThatIsNotReady(t *testing.T) {
	address := closedAddress(t)
	t.Cleanup(func() { negatives.Forget(address) })
	ready := make(chan struct{}) // never closed
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{ConnectStart: func(string, string) {
		request := loop.Listen{First: &loop.Socket{}, Ready: ready}
		streams, err := (&ListenConfig{}).Listen(request.Context(t.Context()), "tcp", address)
		if assert.NoError(t, err) {
			t.Cleanup(func() { streams.Close() })
		}
		ln, err := net.Listen("tcp", address)
		if assert.NoError(t, err) {
			t.Cleanup(func() { ln.Close() })
		}
	}})
	begun := time.Now()
	c, err := (&Dialer{HeadStart: 20 * time.Millisecond}).DialContext(ctx, "tcp", address)
	require.NoError(t, err)
	defer c.Close()
	require.IsType(t, (*net.TCPConn)(nil), c)
	require.Less(t, time.Since(begun), setUpTime)
	told := Explain(address)
	require.Equal(t, "handshake-timeout", told[len(told)-1].Reason)
}

// The endpoint that statistics are read from is of all listeners.
func TestListenThatFailsLeavesTheEndpointToOthers(t *testing.T) {
	ln, err := Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	for range 3 {
		_, err := (&ListenConfig{Transport: RDMA}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.Error(t, err)
	}
	list, err := attach.Find()
	require.NoError(t, err)
	require.True(t, slices.ContainsFunc(list, func(e attach.Endpoint) bool { return e.PID == os.Getpid() }))
}

func TestListenFailsAsPackageNetDoes(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	_, port, err := net.SplitHostPort(taken.Addr().String())
	require.NoError(t, err)
	own := errors.New("of the user's Control")
	for name, c := range map[string]struct {
		network, address string
		control          error
	}{
		"port taken":               {network: "tcp", address: taken.Addr().String()},
		"port taken on one of all": {network: "tcp", address: ":" + port},
		"address of another host":  {network: "tcp", address: "192.0.2.1:" + port},
		"wrong family":             {network: "tcp6", address: "127.0.0.1:" + port},
		"no port":                  {network: "tcp", address: "127.0.0.1"},
		"no such port":             {network: "tcp", address: "127.0.0.1:70000"},
		"no such service":          {network: "tcp", address: "127.0.0.1:no-such-service"},
		"no such zone":             {network: "tcp", address: "[fe80::1%nosuchlink]:" + port},
		"control":                  {network: "tcp", address: closedAddress(t), control: own},
	} {
		t.Run(name, func(t *testing.T) {
			listenersBefore := len(liveListeners.list())
			calls := 0
			control := func(string, string, syscall.RawConn) error { calls++; return c.control }
			_, want := (&net.ListenConfig{Control: control}).Listen(t.Context(), c.network, c.address)
			require.Error(t, want)
			callsOfNet := calls
			calls = 0
			ln, err := (&ListenConfig{Control: control}).Listen(t.Context(), c.network, c.address)
			require.Nil(t, ln)
			require.Equal(t, want, err)
			require.Equal(t, callsOfNet, calls, "calls of Control")
			require.Len(t, liveListeners.list(), listenersBefore)
		})
	}
	t.Run("privileged port", func(t *testing.T) {
		withoutPrivilegedPorts(t, func() {
			_, want := net.Listen("tcp", "127.0.0.1:81")
			assert.ErrorIs(t, want, syscall.EACCES)
			_, err := Listen("tcp", "127.0.0.1:81")
			assert.Equal(t, want, err)
		})
	})
}

// withoutPrivilegedPorts runs f on a thread that may not bind to ports of the
// system.
func withoutPrivilegedPorts(t *testing.T, f func()) {
	t.Helper()
	hang.Start(t, func() {
		thread.Run(func() {
			head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			var caps [2]unix.CapUserData
			if !assert.NoError(t, unix.Capget(&head, &caps[0])) {
				return
			}
			caps[0].Effective &^= 1 << unix.CAP_NET_BIND_SERVICE
			if assert.NoError(t, unix.Capset(&head, &caps[0])) {
				f()
			}
		})
	})()
}

// When the TCP listener fails the others are open already. A socket that is
// bound by Control cannot be bound again.
func TestNothingIsServedWithoutTheTCPListener(t *testing.T) {
	address := closedAddress(t)
	lc := ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		return errors.Join(c.Control(func(fd uintptr) {
			err = unix.Bind(int(fd), &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
		}), err)
	}}
	_, err := lc.Listen(t.Context(), "tcp", address)
	require.ErrorIs(t, err, syscall.EINVAL)
	_, err = overSoft.dialer().Dial("tcp", address)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	ln, err := Listen("tcp", address)
	require.NoError(t, err)
	require.NoError(t, ln.Close())
}

// setting returns a Control that sets an option of the socket.
func setting(option, value int) func(string, string, syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var err error
		return errors.Join(c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, option, value)
		}), err)
	}
}

func TestOptionsThatControlSetsHold(t *testing.T) {
	t.Run("the port can be shared by those who agree", func(t *testing.T) {
		address := closedAddress(t)
		share := setting(unix.SO_REUSEPORT, 1)
		for range 3 {
			ln, err := (&ListenConfig{Control: share}).Listen(t.Context(), "tcp", address)
			require.NoError(t, err)
			defer ln.Close()
			plain, err := (&net.ListenConfig{Control: share}).Listen(t.Context(), "tcp", address)
			require.NoError(t, err)
			defer plain.Close()
		}
		_, err := Listen("tcp", address)
		require.ErrorIs(t, err, syscall.EADDRINUSE)
	})
	t.Run("a port that is used still cannot be had", func(t *testing.T) {
		ln, err := Listen("tcp", closedAddress(t))
		require.NoError(t, err)
		c, s := overTCP.connect(t, ln)
		require.NoError(t, ln.Close())
		for _, end := range []net.Conn{s, c} { // the listener's end waits for its time
			require.NoError(t, end.Close())
		}
		strict := setting(unix.SO_REUSEADDR, 0)
		_, want := (&net.ListenConfig{Control: strict}).Listen(t.Context(), "tcp", ln.Addr().String())
		require.ErrorIs(t, want, syscall.EADDRINUSE)
		_, err = (&ListenConfig{Control: strict}).Listen(t.Context(), "tcp", ln.Addr().String())
		require.Equal(t, want, err)
		free := closedAddress(t)
		other, err := (&ListenConfig{Control: strict}).Listen(t.Context(), "tcp", free)
		require.NoError(t, err)
		require.NoError(t, other.Close())
	})
}
