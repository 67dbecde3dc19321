package kernelcm

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"
)

// encodeSockaddr writes addr into dst as struct sockaddr_in or sockaddr_in6
// and returns its size.
func encodeSockaddr(dst *[sockaddrSize]byte, addr netip.AddrPort) (size uint16, err error) {
	ip := addr.Addr().Unmap()
	clear(dst[:])
	binary.BigEndian.PutUint16(dst[2:], addr.Port())
	switch {
	case ip.Is4():
		binary.NativeEndian.PutUint16(dst[:], unix.AF_INET)
		a := ip.As4()
		copy(dst[4:], a[:])
		return unix.SizeofSockaddrInet4, nil
	case ip.Is6():
		scope, err := zoneIndex(ip.Zone())
		if err != nil {
			return 0, err
		}
		binary.NativeEndian.PutUint16(dst[:], unix.AF_INET6)
		a := ip.As16()
		copy(dst[8:], a[:])
		binary.NativeEndian.PutUint32(dst[24:], scope)
		return unix.SizeofSockaddrInet6, nil
	}
	return 0, fmt.Errorf("not an IP address")
}

// decodeSockaddr reads the first size bytes of src. It returns an invalid
// address for what is not one of IP.
func decodeSockaddr(src *[sockaddrSize]byte, size uint16) netip.AddrPort {
	port := binary.BigEndian.Uint16(src[2:])
	family := binary.NativeEndian.Uint16(src[:])
	switch {
	case family == unix.AF_INET && size >= unix.SizeofSockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(src[4:8])), port)
	case family == unix.AF_INET6 && size >= unix.SizeofSockaddrInet6:
		ip := netip.AddrFrom16([16]byte(src[8:24])).Unmap()
		if scope := binary.NativeEndian.Uint32(src[24:]); scope != 0 && ip.IsLinkLocalUnicast() {
			ip = ip.WithZone(zoneName(scope))
		}
		return netip.AddrPortFrom(ip, port)
	}
	return netip.AddrPort{}
}

// zoneIndex returns the index of the interface that a zone names.
func zoneIndex(zone string) (uint32, error) {
	if zone == "" {
		return 0, nil
	}
	if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
		return uint32(n), nil
	}
	i, err := net.InterfaceByName(zone)
	if err != nil {
		return 0, fmt.Errorf("zone %q: %w", zone, err)
	}
	return uint32(i.Index), nil
}

// zoneName is the reverse; an interface that is gone has its number for a
// name.
func zoneName(index uint32) string {
	if i, err := net.InterfaceByIndex(int(index)); err == nil {
		return i.Name
	}
	return strconv.FormatUint(uint64(index), 10)
}
