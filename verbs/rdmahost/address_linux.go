package rdmahost

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Addrs lists the host's addresses but those of loopback, which are where RDMA
// devices may be found; link-local ones of IPv6 have their zone. It asks the kernel twice,
// where net would ask again for each interface: a host of containers has hundreds, and
// listeners ask every second.
func Addrs() ([]netip.Addr, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list the host's interfaces: %w", err)
	}
	names := make(map[uint32]string, len(interfaces))
	for i := range interfaces {
		names[uint32(interfaces[i].Index)] = interfaces[i].Name
	}
	answer, err := syscall.NetlinkRIB(unix.RTM_GETADDR, unix.AF_UNSPEC)
	if err != nil {
		return nil, os.NewSyscallError("netlink", err)
	}
	list, err := parseAddrs(answer, names)
	if err != nil {
		return nil, fmt.Errorf("list the host's addresses: %w", err)
	}
	return list, nil
}

// parseAddrs reads what route netlink answers to RTM_GETADDR. names are those of
// the interfaces by their index.
func parseAddrs(answer []byte, names map[uint32]string) ([]netip.Addr, error) {
	messages, err := syscall.ParseNetlinkMessage(answer)
	if err != nil {
		return nil, err
	}
	var list []netip.Addr
	for i := range messages {
		ip, zone, err := addressOf(&messages[i])
		if err != nil {
			return nil, err
		}
		if !ip.IsValid() || ip.IsLoopback() {
			continue
		}
		if ip.Is6() && ip.IsLinkLocalUnicast() {
			ip = ip.WithZone(names[zone])
		}
		list = append(list, ip)
	}
	return list, nil
}

// addressOf reads an RTM_NEWADDR message (struct ifaddrmsg and attributes,
// linux/if_addr.h): an address of this host and the index of its interface.
// The address of another message is invalid.
func addressOf(m *syscall.NetlinkMessage) (ip netip.Addr, iface uint32, err error) {
	if m.Header.Type != unix.RTM_NEWADDR || len(m.Data) < unix.SizeofIfAddrmsg {
		return ip, 0, nil
	}
	iface = binary.NativeEndian.Uint32(m.Data[4:])
	// Not by syscall.ParseNetlinkRouteAttr: it panics if an attribute at the end
	// is not padded (Go 1.26).
	b := m.Data[unix.SizeofIfAddrmsg:]
	var address, local []byte
	read := 0
	for typ, val := range attrs(b) {
		switch typ {
		case unix.IFA_ADDRESS:
			address = val
		case unix.IFA_LOCAL:
			local = val
		}
		read += (unix.SizeofNlAttr + len(val) + 3) &^ 3
	}
	if read+unix.SizeofNlAttr <= len(b) {
		return ip, iface, errNetlink
	}
	// On a link between two hosts IFA_ADDRESS is the other's, and IFA_LOCAL
	// ours.
	if local != nil {
		address = local
	}
	ip, _ = netip.AddrFromSlice(address)
	return ip.Unmap(), iface, nil
}
