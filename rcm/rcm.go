package rcm

import (
	"context"
	"net/netip"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// The most private data that a message carries, in bytes: what the IB
// connection manager leaves to users of port space TCP (the REQ carries its
// own 36-byte IP header; rdma/rdma_user_cm.h, and drivers/infiniband/core/cma.c
// for the header).
const (
	MaxRequestData = 56  // ConnParam.PrivateData of Route.Connect
	MaxReplyData   = 196 // ConnParam.PrivateData of Request.Accept
	MaxRejectData  = 148 // Request.Reject
)

// A Fabric connects QPs over one kind of device. Its methods may be called
// from any goroutine.
type Fabric interface {
	// Name is short and constant: "soft".
	Name() string
	// Resolve says over which device addr can be reached. It sends nothing
	// that a plain TCP peer would notice, and is cheap if nobody listens. Where
	// no network has to be asked it does not wait.
	// The error wraps ErrNoRoute, ErrNoListener, ErrPeerDenied, ErrBusy or
	// what ended ctx.
	Resolve(ctx context.Context, addr netip.AddrPort) (Route, error)
	// Listen takes connection requests for addr, whose port must not be 0:
	// the TCP listener that stands beside it chooses the port. An
	// unspecified address means all of the host's; that of IPv6 includes
	// IPv4 unless cfg.V6Only is set. If the address is taken the error wraps
	// syscall.EADDRINUSE.
	Listen(addr netip.AddrPort, cfg ListenConfig) (Listener, error)

	// ResolveDatagram, ListenDatagram and ResolveGroup are for UD QPs. Their
	// ports are others than those of Resolve and Listen, as UDP's are others than
	// TCP's. The errors are the same; where no device that leads there has UD
	// they wrap errors.ErrUnsupported too.

	// ResolveDatagram says over which device the UD QP behind addr can be reached.
	ResolveDatagram(ctx context.Context, addr netip.AddrPort) (DatagramRoute, error)
	// ListenDatagram takes questions for the UD QP at addr. Only Backlog, Device,
	// V6Only, Arrived, and on software devices HandshakeTimeout and PeerPolicy
	// of cfg count.
	ListenDatagram(addr netip.AddrPort, cfg ListenConfig) (DatagramListener, error)
	// ResolveGroup says over which device a multicast group is reached: the
	// fabric's own, if it is restricted to one, or that of the routing table.
	ResolveGroup(ctx context.Context, group netip.Addr) (GroupRoute, error)
}

// A Route is the way to one address, found by Fabric.Resolve. It must be
// given to Connect once, or closed.
type Route interface {
	// Device is the name for verbs.Open of the device to make the QP on.
	Device() string
	// Port is the device's port that the connection goes over, from 1.
	Port() uint8
	LocalAddr() netip.Addr
	RemoteAddr() netip.AddrPort
	// Connect brings qp, an RC QP in RESET, to RTS, connected to the QP that
	// the peer accepts with. It waits for the peer's answer until ctx ends.
	// If the peer rejects, the error is a *RejectedError. On any error qp is
	// in RESET or ERR and left to the caller, who closes it, and nothing
	// else remains.
	Connect(ctx context.Context, qp *verbs.QP, p ConnParam) (Conn, error)
	// Close gives up a route that was not connected. After Connect it does
	// nothing.
	Close() error
}

// ListenConfig says how to listen; the zero value is ready to use.
type ListenConfig struct {
	// Backlog is how many complete requests may wait for Accept, 128 if 0.
	// What comes on top is rejected with ReasonNoResources.
	Backlog int
	// HandshakeTimeout bounds each wait for a message that a peer owes: the
	// request after it connected, the last acknowledgement after the reply.
	// 5 seconds if 0.
	HandshakeTimeout time.Duration
	// Device restricts the listener to one device; empty means any that the
	// address belongs to.
	Device string
	// V6Only keeps a listener on the unspecified IPv6 address from taking
	// requests for IPv4 addresses.
	V6Only bool
	// PeerPolicy narrows down which of the processes that the Fabric lets in
	// may connect, those of the same user by default. Each peer is asked about
	// on a goroutine of its own. Only software devices know their peers.
	PeerPolicy func(Peer) bool
	// Arrived, if it is set, is called when there may be something for Accept to
	// return: a request, or an error. So nobody need wait there all the time. It
	// must not wait, and may be called by several goroutines at once, also before
	// Listen returns.
	Arrived func()
}

// A Listener takes connection requests.
type Listener interface {
	// Accept returns the next request. It waits until there is one, until
	// ctx ends, or until Close; the error then wraps net.ErrClosed. It never
	// waits for a slow peer: only complete requests are counted. A request that
	// is there is returned though ctx has ended. Any other
	// error means that the listener has failed, and only Close is left.
	Accept(ctx context.Context) (Request, error)
	Addr() netip.AddrPort
	// Stats returns what the listener has seen so far.
	Stats() ListenStats
	// Close stops listening and rejects what waits for Accept. Requests that
	// Accept returned, and connections, live on.
	Close() error
}

// ListenStats counts what a listener has seen since it was made.
type ListenStats struct {
	Requests  uint64 // complete requests, given to Accept or waiting for it
	Malformed uint64 // peers dropped because they broke the protocol
	TimedOut  uint64 // peers dropped because they sent no request in time
	Denied    uint64 // peers that the policy refused
	Overflows uint64 // peers rejected because too many waited
}

// A Request is a peer that wants to connect. Exactly one of Accept and Reject
// must be called.
type Request interface {
	// Device is the name for verbs.Open of the device to make the QP on.
	Device() string
	// Port is the device's port that the connection goes over, from 1.
	Port() uint8
	// PrivateData is what the peer gave to Connect. Kernel devices pad it
	// with zeros to MaxRequestData, so it should know its own length.
	PrivateData() []byte
	// LocalAddr is the address that the peer dialed.
	LocalAddr() netip.AddrPort
	RemoteAddr() netip.AddrPort
	Peer() Peer
	// Accept brings qp, an RC QP in RESET, to RTS, answers, and waits for
	// the peer to be connected too, no longer than ctx and the handshake
	// timeout allow. On any error qp is in RESET or ERR and left to the
	// caller, and nothing else remains.
	Accept(ctx context.Context, qp *verbs.QP, p ConnParam) (Conn, error)
	// Reject refuses with ReasonConsumer and up to MaxRejectData bytes.
	Reject(privateData []byte) error
}

// A Conn is a connected QP. The caller calls Disconnect before it closes the
// QP.
type Conn interface {
	// PrivateData is what the other side gave to Connect or Accept. Kernel
	// devices pad it with zeros.
	PrivateData() []byte
	LocalAddr() netip.AddrPort
	RemoteAddr() netip.AddrPort
	Peer() Peer
	// Disconnected is closed when the connection has ended: by the peer, by
	// the peer's death, by removal of the device or by Disconnect.
	Disconnected() <-chan struct{}
	// AfterDisconnect has f called, on a goroutine of its own, when the connection has
	// ended.
	AfterDisconnect(f func())
	// Err says why the connection ended, nil as long as it lives:
	// ErrDisconnected if the peer disconnected, an error that wraps
	// syscall.ECONNRESET if it died or broke the protocol, one that wraps
	// net.ErrClosed after Disconnect. On kernel devices the kernel
	// disconnects for a process that dies: that is ErrDisconnected too. If the
	// peer's host dies nobody does, and only the QP's retries find out.
	Err() error
	// Disconnect moves the QP to ERR, tells the peer and frees what the
	// connection holds beside the QP. Calls after the first do nothing.
	Disconnect() error
}

// Peer is the process at the other end, as the kernel knows it when the two
// are on one host. It is zero for a peer on another host.
type Peer struct {
	PID int    // 0 if our PID namespace does not have it
	UID uint32 // effective, in our user namespace
	GID uint32
}
