// Package peeraddr has the addresses by which a listener knows its streams' peers.
package peeraddr

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"

	"github.com/seed-b9b531af/ramjet/rnet/internal/mux"
)

// Space gives out the addresses of one listener. Each goes to one session at a time, and
// one that was given back is given out again only after all others: a program that uses
// addresses as keys does not soon see that of a former peer again.
//
// A client shows its own IP address and a port that TCP does not give to its
// connections, from 1024 on: the listener serves TCP peers too. Where
// net.ipv4.ip_local_port_range leaves less than portsWorth of these ports, clients of
// this host show spare addresses at once. For those of other hosts all ports are used
// then, and a stream may show the port of somebody's TCP connection.
//
// By default an IP address has 36,280 such ports. TCP would let a client have
// 28,232 connections to one listener and no more. A client of this host may have
// more streams than that: the further ones show addresses of 127.128.0.0/9, from
// which TCP comes only if somebody binds to one. A client whose own address is one of these
// shows others of them. A client of another host gets
// no further ones, and its dials go over TCP.
type Space struct {
	mu    sync.Mutex
	hosts map[netip.Addr]*portSet // of clients that have ports; guarded by mu
	next  uint32                  // the port to begin with; guarded by mu
	spare map[uint32]struct{}     // addresses of 127.128.0.0/9 in use, by their low 23 bits; guarded by mu
	later uint32                  // the spare address to begin with; guarded by mu
}

// portSet is which ports of an IP address may be used and are free.
type portSet struct {
	free  [1 << 16 / 64]uint64
	count int  // free ones
	tcps  bool // ports of TCP's are among them
	most  int  // free ones when no stream has any
}

const (
	firstPort  = 1024 // those below mean that a client is privileged
	portsWorth = 4096

	spareBits  = 23
	sparePorts = 1<<16 - firstPort // of one spare address
	// FewPorts is how many ports are left when sessions of this host go on
	// with spare addresses.
	FewPorts = 64
)

// newPortSet returns the ports that are outside the range from which TCP takes
// its own.
func newPortSet() *portSet {
	p := new(portSet)
	low, high := tcpPorts()
	p.put(firstPort, low-firstPort)
	p.put(high+1, 1<<16-(high+1))
	if p.count < portsWorth {
		*p = portSet{}
		p.put(firstPort, 1<<16-firstPort)
		p.tcps = true
	}
	p.most = p.count
	return p
}

// tcpPorts returns the first and the last port that the kernel gives to TCP
// connections that ask for none.
var tcpPorts = sync.OnceValues(func() (low, high int) {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err == nil {
		_, err = fmt.Sscan(string(text), &low, &high)
	}
	if err != nil || low < firstPort || high < low || high > 1<<16-1 {
		return 32768, 60999 // what it is on Linux if nobody has changed it
	}
	return low, high
})

// put makes ports free.
func (p *portSet) put(first, count int) {
	for i := max(first, 0); i < first+count; i++ {
		p.free[i/64] |= 1 << (i % 64)
		p.count++
	}
}

// take takes up to count consecutive free ports: the first run, from a port on or else from the first one
// on, that has half of them, or half of the longest run if none has as many. One must be free.
//
// A shorter run, as that before the end of the range, does not do: the session it goes to would use its
// few addresses again at once. Nor does only the longest: while others are held between them, one run
// would be given out again and again.
func (p *portSet) take(from uint32, count int) (first, got int) {
	enough := (p.longest(count) + 1) / 2
	for first = p.find(int(from)); ; first = p.find(first + got) {
		if first < 0 {
			first = p.find(0)
		}
		if got = p.run(first, count); got >= enough {
			break
		}
	}
	for i := first; i < first+got; i++ {
		p.free[i/64] &^= 1 << (i % 64)
	}
	p.count -= got
	return first, got
}

// longest returns how many ports the longest free run has, and no more than most.
func (p *portSet) longest(most int) (n int) {
	for at := p.find(0); at >= 0 && n < most; {
		k := p.run(at, most)
		n = max(n, k)
		at = p.find(at + k)
	}
	return n
}

// run returns how many ports are free from a port on, and no more than most.
func (p *portSet) run(from, most int) int {
	n := 0
	for i := from; n < most && i < 1<<16 && p.free[i/64]&(1<<(i%64)) != 0; i++ {
		n++
	}
	return n
}

// find returns the first free port from a port on, -1 if there is none.
func (p *portSet) find(from int) int {
	for w := from / 64; w < len(p.free); w++ {
		word := p.free[w]
		if w == from/64 {
			word &= ^uint64(0) << (from % 64)
		}
		if word != 0 {
			return w*64 + bits.TrailingZeros64(word)
		}
	}
	return -1
}

// Take gives out addresses for up to want streams of a client with address ip,
// at consecutive ports, and returns the first and how many. share is the part
// of the free ports that one session may have at a time: 1 of share. With none
// left it returns 0.
func (s *Space) Take(ip netip.Addr, thisHost bool, want, share int) (netip.AddrPort, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hosts == nil {
		s.hosts, s.spare = make(map[netip.Addr]*portSet), make(map[uint32]struct{})
		s.next, s.later = rand.Uint32N(1<<16), rand.Uint32N(1<<spareBits)
	}
	if spares.Contains(ip) { // ports of its own would be those of a spare address
		return s.takeSpare(min(want, sparePorts))
	}
	ports := s.hosts[ip]
	if ports == nil {
		ports = newPortSet()
		s.hosts[ip] = ports
	}
	switch {
	case thisHost && (ports.tcps || ports.count < FewPorts):
		return s.takeSpare(min(want, sparePorts))
	case ports.count == 0:
		return netip.AddrPort{}, 0
	}
	first, got := ports.take(s.next, min(want, max(1, ports.count/share)))
	s.next = uint32(first+got) % (1 << 16)
	return netip.AddrPortFrom(ip, uint16(first)), got
}

// takeSpare gives out a spare address. mu is held.
func (s *Space) takeSpare(count int) (netip.AddrPort, int) {
	if len(s.spare) == 1<<spareBits {
		return netip.AddrPort{}, 0
	}
	for {
		s.later = (s.later + 1) % (1 << spareBits)
		if _, used := s.spare[s.later]; !used {
			break
		}
	}
	s.spare[s.later] = struct{}{}
	ip := netip.AddrFrom4([4]byte{127, 128 | byte(s.later>>16), byte(s.later >> 8), byte(s.later)})
	return netip.AddrPortFrom(ip, firstPort), count
}

// spares are the spare addresses. Any client may say that it has one.
var spares = netip.MustParsePrefix("127.128.0.0/9")

// Give takes back what a session of a client with address ip was given.
func (s *Space) Give(ip netip.Addr, list []mux.SlotAddrs) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ports := s.hosts[ip]
	for _, r := range list {
		if !spares.Contains(r.Addr.Addr()) {
			ports.put(int(r.Addr.Port()), int(r.Count))
			continue
		}
		b := r.Addr.Addr().As4()
		delete(s.spare, uint32(b[1]&0x7f)<<16|uint32(b[2])<<8|uint32(b[3]))
	}
	if ports != nil && ports.count == ports.most {
		delete(s.hosts, ip)
	}
}
