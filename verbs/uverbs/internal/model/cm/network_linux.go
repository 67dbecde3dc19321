//go:build amd64 || arm64

package cm

import (
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/frame"
)

// A Port is what the connection manager knows of a host's device.
type Port struct {
	Addresses []Address // of the host
	Ethernet  bool
	GUID      uint64
	LID       uint16 // InfiniBand
	MTU       byte   // its code
}

// An Address is one of a host's, with the GID from which and to which its connections go.
type Address struct {
	IP    netip.Addr
	GID   [16]byte
	Index byte // of the GID
}

// address returns that of an IP address, or false.
func (p *Port) address(ip netip.Addr) (Address, bool) {
	for _, a := range p.Addresses {
		if a.IP == ip.Unmap() {
			return a, true
		}
	}
	return Address{}, false
}

// source returns the address from which the host speaks with another one.
func (p *Port) source(to netip.Addr) (Address, bool) {
	for _, a := range p.Addresses {
		if a.IP.Is4() == to.Unmap().Is4() {
			return a, true
		}
	}
	return Address{}, false
}

// A Network connects the connection managers of hosts.
type Network struct {
	mu     sync.Mutex // guards all that hosts have
	hosts  []*Host
	number uint32     // of the id made last, and source of PSNs
	groups [][16]byte // those that have been joined, in the order of their LIDs
}

// A Host is the connection manager of one host.
type Host struct {
	network   *Network
	port      Port
	bound     []*identifier // those with a local port
	ephemeral uint16
	files     []*file
}

// NewHost adds a host.
func (n *Network) NewHost(port Port) *Host {
	n.mu.Lock()
	defer n.mu.Unlock()
	const firstEphemeral = 40000
	h := &Host{network: n, port: port, ephemeral: firstEphemeral}
	n.hosts = append(n.hosts, h)
	return h
}

// Listens says whether a program on some host listens.
func (n *Network) Listens() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, h := range n.hosts {
		for _, i := range h.bound {
			if i.state == listening {
				return true
			}
		}
	}
	return false
}

// Open opens its device file.
func (h *Host) Open(count *frame.EventCount) (frame.MessageFile, error) {
	h.network.mu.Lock()
	defer h.network.mu.Unlock()
	f := &file{host: h, count: count, identifiers: map[uint32]*identifier{}}
	h.files = append(h.files, f)
	return f, nil
}

// Remove tells all programs that the device is gone (cma.c, cma_process_remove).
func (h *Host) Remove() {
	h.network.mu.Lock()
	defer h.network.mu.Unlock()
	for _, f := range h.files {
		for _, i := range f.identifiers {
			if i.onDevice {
				i.onDevice = false
				i.report(event{kind: eventDeviceRemoval})
			}
		}
	}
	h.port.Addresses = nil
}

// find returns the host with an IP address and what belongs to that, or nil.
func (n *Network) find(ip netip.Addr) (*Host, Address) {
	for _, h := range n.hosts {
		if a, ok := h.port.address(ip); ok {
			return h, a
		}
	}
	return nil, Address{}
}

// next returns a number that was not used.
func (n *Network) next() uint32 {
	n.number++
	return n.number
}

// bind gives an id a local address (cma.c, rdma_bind_addr and cma_get_port).
func (h *Host) bind(i *identifier, a netip.AddrPort) unix.Errno {
	address := a.Addr().Unmap()
	_, here := h.port.address(address)
	switch {
	case i.local.IsValid():
		return unix.EINVAL // rdma_bind_addr
	case !address.IsUnspecified() && !here:
		return unix.EADDRNOTAVAIL // core/addr.c, rdma_translate_ip
	}
	if a.Addr().Is4() {
		i.only = true
	}
	number := a.Port()
	if number == 0 {
		for number = h.ephemeral; h.conflict(i, netip.AddrPortFrom(address, number)) != 0; number++ {
		}
		h.ephemeral = number + 1
	}
	local := netip.AddrPortFrom(a.Addr(), number)
	if errno := h.conflict(i, local); errno != 0 {
		return errno
	}
	i.local, i.onDevice = local, !address.IsUnspecified()
	h.bound = append(h.bound, i)
	return 0
}

// conflict is cma.c, cma_check_port.
func (h *Host) conflict(i *identifier, local netip.AddrPort) unix.Errno {
	for _, other := range h.bound {
		if other == i || other.space != i.space || other.local.Port() != local.Port() || other.reuse && i.reuse ||
			other.accepted || other.only && i.only && local.Addr().Is4() != other.local.Addr().Is4() {
			continue
		}
		a, b := other.local.Addr().Unmap(), local.Addr().Unmap()
		switch {
		case a.IsUnspecified() || b.IsUnspecified():
			return unix.EADDRNOTAVAIL // cma.c, cma_check_port
		case a == b:
			return unix.EADDRINUSE // the same
		}
	}
	return 0
}

// listener returns the id that listens at an address, or nil (cma.c, cma_match_private_data).
func (h *Host) listener(space uint16, at netip.AddrPort) *identifier {
	for _, i := range h.bound {
		if i.state != listening || i.space != space || i.local.Port() != at.Port() {
			continue
		}
		local, to := i.local.Addr().Unmap(), at.Addr().Unmap()
		if local == to || local.IsUnspecified() && (!i.only || local.Is4() == to.Is4()) {
			return i
		}
	}
	return nil
}

func (h *Host) release(i *identifier) {
	for n, other := range h.bound {
		if other == i {
			h.bound = append(h.bound[:n], h.bound[n+1:]...)
			return
		}
	}
}
