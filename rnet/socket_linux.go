package rnet

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// socketOptions are those of a listening socket that decide beside which others
// it can be.
type socketOptions struct {
	family               int
	v6Only               bool
	reuseAddr, reusePort bool
}

// optionsOf reads the options of a TCP socket that is not bound yet. v6Only is as in onlyV6.
func optionsOf(c syscall.RawConn, v6Only bool) (o socketOptions, err error) {
	ctlErr := c.Control(func(fd uintptr) {
		get := func(name int) (n int) {
			if err == nil {
				n, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, name)
			}
			return n
		}
		o.family = get(unix.SO_DOMAIN)
		o.reuseAddr = get(unix.SO_REUSEADDR) != 0
		o.reusePort = get(unix.SO_REUSEPORT) != 0
		o.v6Only = isV6Only(int(fd), v6Only)
	})
	if ctlErr != nil {
		return o, ctlErr
	}
	return o, os.NewSyscallError("getsockopt", err)
}

// holdPort binds a socket with these options to the address, and returns what
// that came to. It does not listen, so nobody can connect to it. It fails where
// a socket with these options could not listen: if somebody else does, for one.
// The port is held until the file is closed.
func holdPort(at netip.AddrPort, o socketOptions) (io.Closer, *net.TCPAddr, error) {
	fd, err := unix.Socket(o.family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socket", err)
	}
	file := os.NewFile(uintptr(fd), "held port")
	held, err := bindTo(fd, at, o)
	if err != nil {
		file.Close()
		return nil, nil, fmt.Errorf("hold the port of %s: %w", at, err)
	}
	return file, held, nil
}

func bindTo(fd int, at netip.AddrPort, o socketOptions) (*net.TCPAddr, error) {
	var err error
	set := func(level, name int, on bool) {
		value := 0
		if on {
			value = 1
		}
		if err == nil {
			err = os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, level, name, value))
		}
	}
	set(unix.SOL_SOCKET, unix.SO_REUSEADDR, o.reuseAddr)
	set(unix.SOL_SOCKET, unix.SO_REUSEPORT, o.reusePort)
	if o.family == unix.AF_INET6 {
		set(unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, o.v6Only)
	}
	if err != nil {
		return nil, err
	}
	if err := unix.Bind(fd, sockaddr(at, o.family)); err != nil {
		return nil, os.NewSyscallError("bind", err)
	}
	bound, err := unix.Getsockname(fd)
	if err != nil {
		return nil, os.NewSyscallError("getsockname", err)
	}
	switch sa := bound.(type) {
	case *unix.SockaddrInet4:
		return &net.TCPAddr{IP: sa.Addr[:], Port: sa.Port}, nil
	case *unix.SockaddrInet6:
		return &net.TCPAddr{IP: sa.Addr[:], Port: sa.Port, Zone: zoneName(sa.ZoneId)}, nil
	}
	return nil, fmt.Errorf("bound to %T", bound)
}

// zoneName is what package net calls the zone of a socket's address, which only link-local ones have.
func zoneName(id uint32) string {
	if id == 0 {
		return ""
	}
	if ifi, err := net.InterfaceByIndex(int(id)); err == nil {
		return ifi.Name
	}
	return strconv.FormatUint(uint64(id), 10)
}

// sockaddr is an address as sockets of the family have it. 0.0.0.0 is [::] for
// one that serves both families.
func sockaddr(at netip.AddrPort, family int) unix.Sockaddr {
	ip := at.Addr()
	if family == unix.AF_INET {
		sa := &unix.SockaddrInet4{Port: int(at.Port())}
		if ip.Unmap().Is4() {
			sa.Addr = ip.Unmap().As4()
		}
		return sa
	}
	sa := &unix.SockaddrInet6{Port: int(at.Port())}
	if !ip.Unmap().IsUnspecified() {
		sa.Addr = ip.As16()
	}
	if ifi, err := net.InterfaceByName(ip.Zone()); err == nil {
		sa.ZoneId = uint32(ifi.Index)
	} else if n, err := strconv.ParseUint(ip.Zone(), 10, 32); err == nil {
		sa.ZoneId = uint32(n)
	}
	return sa
}

// messageLimit returns how long a message may be over a Unix socket with a send buffer of
// so many bytes, of the usual size if it is nil.
func messageLimit(buffer *int) (int32, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	if buffer != nil {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, *buffer); err != nil {
			return 0, os.NewSyscallError("setsockopt", err)
		}
	}
	n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF)
	if err != nil {
		return 0, os.NewSyscallError("getsockopt", err)
	}
	return int32(min(n-sendBufferOverhead, maxMessage)), nil
}

// sendBufferOverhead is what Linux keeps of a send buffer for itself (unix_dgram_sendmsg).
const sendBufferOverhead = 32

// onlyV6 reports whether a listener on an IPv6 address takes no IPv4 peers, which a program's
// Control may have set too. It is no question that each kernel answers for MPTCP; otherwise is
// the answer then.
func onlyV6(c syscall.Conn, otherwise bool) bool {
	only := otherwise
	if raw, err := c.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { only = isV6Only(int(fd), otherwise) })
	}
	return only
}

func isV6Only(fd int, otherwise bool) bool {
	n, err := unix.GetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY)
	if err != nil {
		return otherwise
	}
	return n != 0
}

// copyOf returns a file of the listener's socket. os.NewFile leaves a descriptor as it
// is, while a file of package net becomes one that blocks when somebody asks for the
// descriptor.
func copyOf(tcp tcpListener) (*os.File, error) {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	ctlErr := raw.Control(func(of uintptr) { fd, err = unix.FcntlInt(of, unix.F_DUPFD_CLOEXEC, 0) })
	if ctlErr != nil {
		return nil, ctlErr
	}
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fd), tcp.Addr().String()), nil
}

// tcpWaits reports whether somebody waits in the backlog of the TCP listener.
func (l *Listener) tcpWaits() bool {
	if l.tcp == nil {
		return false
	}
	raw, err := l.tcp.SyscallConn()
	if err != nil {
		return false
	}
	n := 0
	raw.Control(func(fd uintptr) {
		n, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	})
	return n > 0
}
