package rnet

// Transport says which way a connection may take. The zero value leaves it to
// the environment variable RNET_TRANSPORT, and that to Auto.
type Transport string

// The transports. All but Auto forbid the others: a dial that cannot take the
// one fails and says why.
const (
	Auto Transport = "auto" // the fastest that works, TCP at last
	Soft Transport = "soft" // the software HCA, to processes of this host
	RDMA Transport = "rdma" // a kernel RDMA device
	TCP  Transport = "tcp"  // plain TCP
)

// Unix is the transport of a dial to a Unix socket that is not accelerated. It is told, by
// Explain for example, and not chosen: who chooses TCP gets it there.
const Unix Transport = "unix"

// Profile says how much CPU time may be spent on waiting, on this side of a
// connection. The zero value leaves it to the environment variable
// RNET_PROFILE, and that to Balanced. docs/tuning.md has what each costs.
type Profile string

// The profiles.
const (
	// polls up to 200 us, and up to 1 ms on a network, where that has ended waits lately
	Balanced  Profile = "balanced"
	Latency   Profile = "latency"   // polls up to 2 ms
	Efficient Profile = "efficient" // sleeps at once
)

// Limits are the sizes that a Dialer or ListenConfig gives its sessions, for
// what this side receives; the peer has its own. Zero fields mean the defaults.
// A value out of range makes each Dial and Listen fail. See docs/tuning.md.
type Limits struct {
	// RingSize is the receive ring of a session in bytes: a power of two from
	// 64 KiB to 1 GiB. Default 1 MiB. On a kernel device it is pinned as long as
	// the session lives; over shared memory pages come with use, and both sides need
	// such a size if it is above 64 MiB. Where memory is
	// short a session gets a smaller one, at least 64 KiB.
	RingSize int
	// Window is how much of one stream may be under way or unread, in bytes,
	// 4 KiB to 256 MiB. Default 512 KiB.
	Window int
	// SessionWindow is how much all streams of a session together may hold
	// unread, in bytes, 64 KiB to 1 GiB; each stream may hold 1 KiB besides.
	// Default 16 MiB.
	SessionWindow int
	// Streams is how many streams a session may have at once, 1 to 1,048,576.
	// Default 131,072. The lesser of both sides counts. What is dialed on top
	// goes over TCP.
	Streams int
}
