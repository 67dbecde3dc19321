package rnet

import (
	"context"
	"errors"
	"net"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/internal/hang"
)

// doing is a control function that does one thing to the socket.
func doing(do func(fd int) error) func(string, string, syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var err error
		return errors.Join(c.Control(func(fd uintptr) { err = do(int(fd)) }), err)
	}
}

func settingAt(level, option, value int) func(string, string, syscall.RawConn) error {
	return doing(func(fd int) error { return unix.SetsockoptInt(fd, level, option, value) })
}

// dialWith dials, with no session there, and again, with one.
func dialWith(t *testing.T, d Dialer, check func(c net.Conn, address string)) {
	t.Helper()
	ln := carrier{}.listen(t)
	address := ln.Addr().String()
	d.HeadStart = hang.Time
	for range 2 {
		c, err := d.Dial("tcp", address)
		require.NoError(t, err)
		check(c, address)
		c.Close()
	}
	keep, err := patient().Dial("tcp", address)
	require.NoError(t, err)
	defer keep.Close()
	require.IsType(t, (*Conn)(nil), keep)
	c, err := d.Dial("tcp", address)
	require.NoError(t, err)
	defer c.Close()
	check(c, address)
}

// What gRPC's own dialer does, and others like it, is no reason for TCP.
func TestOptionsOfTCPItselfKeepNoDialFromStreams(t *testing.T) {
	for name, control := range map[string]func(string, string, syscall.RawConn) error{
		"nothing":        func(string, string, syscall.RawConn) error { return nil },
		"keep-alive":     settingAt(unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1),
		"idle time":      settingAt(unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 10),
		"user timeout":   settingAt(unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 10_000),
		"delay":          settingAt(unix.IPPROTO_TCP, unix.TCP_NODELAY, 0),
		"receive buffer": settingAt(unix.SOL_SOCKET, unix.SO_RCVBUF, 1<<20),
		"reuse address":  settingAt(unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
		"fast open":      settingAt(unix.IPPROTO_TCP, unix.TCP_FASTOPEN_CONNECT, 1),
		"not sent":       settingAt(unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, 1<<14),
	} {
		t.Run(name, func(t *testing.T) {
			dialWith(t, Dialer{Control: control}, func(c net.Conn, address string) {
				require.IsType(t, (*Conn)(nil), c, "%v", Explain(address))
			})
		})
	}
}

func TestOptionsOfPacketsMakeADialGoOverTCP(t *testing.T) {
	loopback, err := net.InterfaceByName("lo")
	require.NoError(t, err)
	options := map[string]func(string, string, syscall.RawConn) error{
		"SO_BINDTODEVICE": doing(func(fd int) error { return unix.BindToDevice(fd, "lo") }),
		"a local address": doing(func(fd int) error {
			return unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
		}),
		"SO_ATTACH_FILTER": doing(func(fd int) error { return attachFilter(fd, 1) }),
		"IP_OPTIONS": doing(func(fd int) error {
			// a router alert
			return unix.SetsockoptString(fd, unix.IPPROTO_IP, unix.IP_OPTIONS, "\x94\x04\x00\x00")
		}),
		"SO_MARK":               settingAt(unix.SOL_SOCKET, unix.SO_MARK, 7),
		"SO_PRIORITY or IP_TOS": settingAt(unix.SOL_SOCKET, unix.SO_PRIORITY, 3),
		"SO_DONTROUTE":          settingAt(unix.SOL_SOCKET, unix.SO_DONTROUTE, 1),
		"SO_MAX_PACING_RATE":    settingAt(unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, 1<<20),
		"SO_TIMESTAMPING":       settingAt(unix.SOL_SOCKET, unix.SO_TIMESTAMPING, unix.SOF_TIMESTAMPING_SOFTWARE),
		"SO_ZEROCOPY":           settingAt(unix.SOL_SOCKET, unix.SO_ZEROCOPY, 1),
		"IP_TOS":                settingAt(unix.IPPROTO_IP, unix.IP_TOS, 4), // of no other priority
		"IP_TTL":                settingAt(unix.IPPROTO_IP, unix.IP_TTL, 255),
		"IP_MINTTL":             settingAt(unix.IPPROTO_IP, unix.IP_MINTTL, 1),
		"IP_TRANSPARENT":        settingAt(unix.IPPROTO_IP, unix.IP_TRANSPARENT, 1),
		"IP_UNICAST_IF":         settingAt(unix.IPPROTO_IP, unix.IP_UNICAST_IF, loopback.Index<<24),
	}
	for name, control := range options {
		for which, d := range map[string]Dialer{
			"Control": {Control: control},
			"ControlContext": {ControlContext: func(_ context.Context, network, address string, c syscall.RawConn) error {
				return control(network, address, c)
			}},
		} {
			t.Run(name+" by "+which, func(t *testing.T) {
				ln := carrier{}.listen(t)
				c, err := d.Dial("tcp", ln.Addr().String())
				if err != nil {
					for _, lacks := range []error{unix.EPERM, unix.ENOPROTOOPT, unix.EOPNOTSUPP} {
						if errors.Is(err, lacks) {
							t.Skipf("this may not be set here: %v", err)
						}
					}
				}
				require.NoError(t, err)
				c.Close()
				dialWith(t, d, func(c net.Conn, address string) {
					require.IsType(t, (*net.TCPConn)(nil), c)
					last := Explain(address)
					require.Equal(t, "socket-options", last[len(last)-1].Reason)
					require.ErrorContains(t, last[len(last)-1].Err, name)
				})
			})
		}
	}
}

// What the kernel writes for an option stays in the place that there is for it, also for
// a filter, whose size it counts in instructions.
func TestOptionsAreReadWithinTheirPlace(t *testing.T) {
	for instructions := range 6 {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
		defer unix.Close(fd)
		if instructions > 0 {
			require.NoError(t, attachFilter(fd, instructions))
		}
		for _, o := range packetOptions {
			const canary = 0x5ca1ab1e
			var place [64]int32
			for i := range place {
				place[i] = canary
			}
			size, err := o.readTo(fd, &place[8])
			for i := range place {
				if i != 8 {
					require.EqualValues(t, canary, place[i], "%s was written %d bytes from its place", o.name, 4*(i-8))
				}
			}
			if o.code == unix.SO_GET_FILTER && o.level == unix.SOL_SOCKET {
				require.NoError(t, err)
				require.EqualValues(t, instructions, size)
			}
		}
	}
}

func TestHeadersThatIPv6PacketsCarryAreSeen(t *testing.T) {
	options := "\x00\x00\x01\x04\x00\x00\x00\x00" // 8 bytes, of padding
	nothing := make([]byte, 8)                    // the same, with four zeros at the beginning
	route := append([]byte{0, 2, 4, 0, 0, 0, 0, 0}, net.IPv6loopback...)
	for name, set := range map[string]struct {
		code  int
		value string
	}{
		"IPV6_RTHDR":        {unix.IPV6_RTHDR, string(route)},
		"IPV6_RTHDRDSTOPTS": {unix.IPV6_RTHDRDSTOPTS, options},
		"IPV6_DSTOPTS":      {unix.IPV6_DSTOPTS, options},
		"IPV6_HOPOPTS":      {unix.IPV6_HOPOPTS, string(nothing)},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := net.ListenUDP("udp6", nil)
			if err != nil {
				t.Skipf("no IPv6 here: %v", err)
			}
			defer c.Close()
			raw := rawOf(t, c)
			before := packetOptionsOf(raw)
			require.Empty(t, before.changed(packetOptionsOf(raw)))
			var setErr error
			require.NoError(t, raw.Control(func(fd uintptr) {
				setErr = unix.SetsockoptString(int(fd), unix.IPPROTO_IPV6, set.code, set.value)
			}))
			if errors.Is(setErr, unix.EPERM) {
				t.Skipf("this may not be set here: %v", setErr)
			}
			require.NoError(t, setErr)
			require.Equal(t, name, before.changed(packetOptionsOf(raw)))
		})
	}
}

// attachFilter attaches a filter that lets everything pass.
func attachFilter(fd, instructions int) error {
	all := slices.Repeat([]unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff}}, instructions)
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(instructions), Filter: &all[0]})
}

// A program forbids addresses by its control function: those where streams are served
// too, and those to which a session lives.
func TestAddressesThatControlForbidsAreNotReached(t *testing.T) {
	ln := carrier{}.listen(t)
	address := ln.Addr().String()
	keep, err := patient().Dial("tcp", address)
	require.NoError(t, err)
	defer keep.Close()
	require.IsType(t, (*Conn)(nil), keep)
	forbidden := errors.New("not there")
	var asked []string
	d := Dialer{Control: func(network, address string, _ syscall.RawConn) error {
		asked = append(asked, network+" "+address)
		return forbidden
	}}
	_, err = d.Dial("tcp", address)
	require.ErrorIs(t, err, forbidden)
	require.Equal(t, []string{"tcp4 " + address}, asked)
	plain := net.Dialer{Control: d.Control}
	_, want := plain.Dial("tcp", address)
	require.Equal(t, want, err)
	allowed := slices.Clone(asked)
	d.Control = func(network, address string, _ syscall.RawConn) error {
		allowed = append(allowed, network+" "+address)
		return nil
	}
	c, err := d.Dial("tcp", address)
	require.NoError(t, err)
	defer c.Close()
	require.IsType(t, (*Conn)(nil), c)
	require.Len(t, allowed, 3)
}

// What is said of packets holds for streams too, or there are none.
func TestAListenerWithOptionsOfPacketsServesTCPAlone(t *testing.T) {
	for name, c := range map[string]struct {
		control func(string, string, syscall.RawConn) error
		streams bool
	}{
		"nothing":       {func(string, string, syscall.RawConn) error { return nil }, true},
		"reuse port":    {setting(unix.SO_REUSEPORT, 1), true},
		"keep-alive":    {setting(unix.SO_KEEPALIVE, 1), true},
		"a device":      {doing(func(fd int) error { return unix.BindToDevice(fd, "lo") }), false},
		"the least TTL": {settingAt(unix.IPPROTO_IP, unix.IP_MINTTL, 1), false},
		"a filter": {doing(func(fd int) error {
			all := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 16}}
			return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &all[0]})
		}), false},
	} {
		t.Run(name, func(t *testing.T) {
			named := closedAddress(t)
			given := func() (net.Listener, error) {
				config := net.ListenConfig{Control: c.control}
				tcp, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
				require.NoError(t, err)
				return NewListener(tcp)
			}
			lc := ListenConfig{Control: c.control}
			for _, listen := range []func() (net.Listener, error){
				given,
				func() (net.Listener, error) { return lc.Listen(t.Context(), "tcp", named) },
				func() (net.Listener, error) { return lc.Listen(t.Context(), "tcp", "127.0.0.1:0") },
			} {
				ln, err := listen()
				require.NoError(t, err)
				defer ln.Close()
				negatives.Forget(ln.Addr().String())
				dialed, err := patient().Dial("tcp", ln.Addr().String())
				require.NoError(t, err)
				defer dialed.Close()
				accepted, err := ln.Accept()
				require.NoError(t, err)
				defer accepted.Close()
				for _, end := range []net.Conn{dialed, accepted} {
					_, isStream := end.(*Conn)
					require.Equal(t, c.streams, isStream, "%T", end)
				}
			}
		})
	}
	lc := ListenConfig{Control: settingAt(unix.IPPROTO_IP, unix.IP_MINTTL, 1), Transport: Soft}
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	require.IsType(t, (*Listener)(nil), ln, "where streams are demanded")
}

// A listener that takes no IPv4 over TCP takes none at all: another server may have it.
func TestAListenerForIPv6AloneHasNoStreamsOfIPv4(t *testing.T) {
	probe, err := net.Listen("tcp6", "[::]:0")
	require.NoError(t, err)
	told := onlyV6(probe.(syscall.Conn), false) // not by each kernel for MPTCP
	require.NoError(t, probe.Close())
	lc := ListenConfig{Control: settingAt(unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1)}
	lc.SetMultipathTCP(told)
	for name, listen := range map[string]func() (net.Listener, error){
		"any port": func() (net.Listener, error) {
			return lc.Listen(t.Context(), "tcp", "[::]:0")
		},
		"named port": func() (net.Listener, error) {
			return lc.Listen(t.Context(), "tcp", closedAddressOf(t, "::"))
		},
		"given": func() (net.Listener, error) {
			var plain net.ListenConfig
			plain.SetMultipathTCP(told)
			ln, err := plain.Listen(t.Context(), "tcp6", "[::]:0")
			require.NoError(t, err)
			return NewListener(ln)
		},
	} {
		t.Run(name, func(t *testing.T) {
			var ln6, ln4 net.Listener
			var port string
			for range 20 { // somebody may have the port of IPv4
				var err error
				ln6, err = listen()
				require.NoError(t, err)
				defer ln6.Close()
				_, port, err = net.SplitHostPort(ln6.Addr().String())
				require.NoError(t, err)
				if ln4, err = net.Listen("tcp4", "127.0.0.1:"+port); err == nil {
					defer ln4.Close()
					break
				}
			}
			require.NotNil(t, ln4)
			for host, ln := range map[string]net.Listener{"127.0.0.1": ln4, "::1": ln6} {
				address := net.JoinHostPort(host, port)
				negatives.Forget(address)
				c, err := patient().Dial("tcp", address)
				require.NoError(t, err)
				defer c.Close()
				_, isStream := c.(*Conn)
				require.Equal(t, ln == ln6, isStream, address)
				s, err := ln.Accept()
				require.NoError(t, err)
				s.Close()
			}
		})
	}
}
