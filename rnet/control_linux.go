package rnet

import (
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Options that golang.org/x/sys/unix has no name for: asm-generic/socket.h,
// linux/in.h, linux/in6.h, linux/tcp.h.
const (
	soBindToIfIndex  = 62
	ipLocalPortRange = 51
	ipv6MinHopCount  = 73
	ipv6UnicastIf    = 76
	tcpAOInfo        = 40
)

// packetOption is a socket option that is about packets, or about who may read them:
// it is lost where there are none.
type packetOption struct {
	name        string
	level, code int
}

// packetOptions are all of those that can be read. TCP_MD5SIG and the IPsec policies
// cannot.
var packetOptions = [...]packetOption{
	{"SO_BINDTODEVICE", unix.SOL_SOCKET, soBindToIfIndex},
	{"SO_MARK", unix.SOL_SOCKET, unix.SO_MARK},
	{"SO_PRIORITY or IP_TOS", unix.SOL_SOCKET, unix.SO_PRIORITY},
	{"SO_DONTROUTE", unix.SOL_SOCKET, unix.SO_DONTROUTE},
	{"SO_ATTACH_FILTER", unix.SOL_SOCKET, unix.SO_GET_FILTER},
	{"SO_MAX_PACING_RATE", unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE},
	{"SO_TIMESTAMPING", unix.SOL_SOCKET, unix.SO_TIMESTAMPING},
	{"SO_ZEROCOPY", unix.SOL_SOCKET, unix.SO_ZEROCOPY},
	{"IP_TOS", unix.IPPROTO_IP, unix.IP_TOS},
	{"IP_TTL", unix.IPPROTO_IP, unix.IP_TTL},
	{"IP_MINTTL", unix.IPPROTO_IP, unix.IP_MINTTL},
	{"IP_OPTIONS", unix.IPPROTO_IP, unix.IP_OPTIONS},
	{"IP_TRANSPARENT", unix.IPPROTO_IP, unix.IP_TRANSPARENT},
	{"IP_UNICAST_IF", unix.IPPROTO_IP, unix.IP_UNICAST_IF},
	{"IP_LOCAL_PORT_RANGE", unix.IPPROTO_IP, ipLocalPortRange},
	{"IPV6_TCLASS", unix.IPPROTO_IPV6, unix.IPV6_TCLASS},
	{"IPV6_UNICAST_HOPS", unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS},
	{"IPV6_MINHOPCOUNT", unix.IPPROTO_IPV6, ipv6MinHopCount},
	{"IPV6_TRANSPARENT", unix.IPPROTO_IPV6, unix.IPV6_TRANSPARENT},
	{"IPV6_UNICAST_IF", unix.IPPROTO_IPV6, ipv6UnicastIf},
	{"IPV6_HOPOPTS", unix.IPPROTO_IPV6, unix.IPV6_HOPOPTS},
	{"IPV6_RTHDRDSTOPTS", unix.IPPROTO_IPV6, unix.IPV6_RTHDRDSTOPTS},
	{"IPV6_RTHDR", unix.IPPROTO_IPV6, unix.IPV6_RTHDR},
	{"IPV6_DSTOPTS", unix.IPPROTO_IPV6, unix.IPV6_DSTOPTS},
	{"TCP_REPAIR", unix.IPPROTO_TCP, unix.TCP_REPAIR},
	{"TCP_AO_ADD_KEY", unix.IPPROTO_TCP, tcpAOInfo},
}

// packetState is what the kernel said of each: a value, or why there is none.
type packetState struct {
	bound  string
	values [len(packetOptions)]packetValue
}

type packetValue struct {
	n    int32
	size uint32
	err  error
}

func packetOptionsOf(c syscall.RawConn) (s packetState) {
	c.Control(func(fd uintptr) { s.read(int(fd)) })
	return s
}

func (s *packetState) read(fd int) {
	bound, err := unix.Getsockname(fd)
	switch at := bound.(type) {
	case *unix.SockaddrInet4:
		s.bound = fmt.Sprint(at.Addr, at.Port)
	case *unix.SockaddrInet6:
		s.bound = fmt.Sprint(at.Addr, at.Port, at.ZoneId)
	default:
		s.bound = fmt.Sprint(err)
	}
	for i, o := range packetOptions {
		s.values[i] = o.read(fd)
	}
}

// read asks the kernel for the option.
func (o packetOption) read(fd int) (v packetValue) {
	v.size, v.err = o.readTo(fd, &v.n)
	return v
}

// readTo writes the option to value, or of a longer one the beginning, and returns
// what the kernel says of its size.
func (o packetOption) readTo(fd int, value *int32) (size uint32, err error) {
	size = uint32(unsafe.Sizeof(*value))
	if o.level == unix.SOL_SOCKET && o.code == unix.SO_GET_FILTER {
		// Here sizes are numbers of instructions, of 8 bytes each. For none the
		// kernel writes none, and says how many there are.
		size = 0
	}
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(o.level), uintptr(o.code),
		uintptr(unsafe.Pointer(value)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return 0, errno
	}
	return size, nil
}

// usualPacketOptions returns what a new socket of the same kind has.
func usualPacketOptions(c syscall.RawConn) (s packetState, ok bool) {
	var domain, typ, protocol int
	var errs [3]error
	err := c.Control(func(fd uintptr) {
		domain, errs[0] = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DOMAIN)
		typ, errs[1] = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TYPE)
		protocol, errs[2] = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PROTOCOL)
	})
	if err != nil || errs != [3]error{} {
		return s, false
	}
	fd, err := unix.Socket(domain, typ|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return s, false
	}
	defer unix.Close(fd)
	s.read(fd)
	return s, true
}

// changed returns the name of what is no longer as it was, "" if nothing is.
func (s *packetState) changed(now packetState) string {
	if s.bound != now.bound {
		return "a local address"
	}
	return s.changedButAddress(now)
}

// changedButAddress is changed for what is not the local address.
func (s *packetState) changedButAddress(now packetState) string {
	for i := range packetOptions {
		if s.values[i] != now.values[i] {
			return packetOptions[i].name
		}
	}
	return ""
}
