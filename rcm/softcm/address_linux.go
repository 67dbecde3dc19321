package softcm

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/seed-b9b531af/ramjet/rcm"
)

// hostAddrsAge is how old the list of the host's addresses may become.
const hostAddrsAge = time.Second

// hostAddrs caches the addresses of the host's interfaces: to list them costs
// a hundred times as much as to find nobody listening.
var hostAddrs struct {
	sync.Mutex
	set  map[netip.Addr]struct{} // guarded by the mutex
	read time.Time               // guarded by the mutex
}

// onThisHost reports whether ip, which has no zone, is an address of this
// host.
func onThisHost(ip netip.Addr) (bool, error) {
	if ip.IsLoopback() {
		return true, nil
	}
	set, err := addressesOfHost()
	_, ok := set[ip]
	return ok, err
}

// addressesOfHost returns the addresses of the host's interfaces, which nobody changes.
func addressesOfHost() (map[netip.Addr]struct{}, error) {
	hostAddrs.Lock()
	defer hostAddrs.Unlock()
	if hostAddrs.set == nil || time.Since(hostAddrs.read) > hostAddrsAge {
		list, err := net.InterfaceAddrs()
		if err != nil {
			return nil, fmt.Errorf("list the host's addresses: %w", err)
		}
		hostAddrs.set = make(map[netip.Addr]struct{}, len(list))
		for _, a := range list {
			if n, ok := a.(*net.IPNet); ok {
				if ip, ok := netip.AddrFromSlice(n.IP); ok {
					hostAddrs.set[ip.Unmap()] = struct{}{}
				}
			}
		}
		hostAddrs.read = time.Now()
	}
	return hostAddrs.set, nil
}

// errElsewhere is an address of which this network namespace is not the owner.
var errElsewhere = errors.New("not an address of this host")

// targetOf returns the address of this host that a dial to addr means: as
// for TCP, an unspecified address means the loopback one. The error wraps
// ErrNoRoute. Addresses with a zone are left to TCP.
func targetOf(addr netip.AddrPort) (netip.AddrPort, error) {
	ip := addr.Addr().Unmap()
	switch {
	case !ip.IsValid() || addr.Port() == 0:
		return addr, fmt.Errorf("%w: not an address and a port", rcm.ErrNoRoute)
	case ip.Zone() != "":
		return addr, fmt.Errorf("%w: address has a zone", rcm.ErrNoRoute)
	case ip == netip.IPv4Unspecified():
		ip = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	case ip == netip.IPv6Unspecified():
		ip = netip.IPv6Loopback()
	}
	local, err := onThisHost(ip)
	if err != nil {
		return addr, fmt.Errorf("%w: %w", rcm.ErrNoRoute, err)
	}
	if !local {
		return netip.AddrPortFrom(ip, addr.Port()), fmt.Errorf("%w: %w", rcm.ErrNoRoute, errElsewhere)
	}
	return netip.AddrPortFrom(ip, addr.Port()), nil
}

// sourceFor returns the address from which TCP would reach target on the same
// host: the kernel prefers 127.0.0.1 for 127.0.0.0/8 and target itself
// otherwise.
func sourceFor(target netip.Addr) netip.Addr {
	if target.Is4() && target.IsLoopback() {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return target
}
