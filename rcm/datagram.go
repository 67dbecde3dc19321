package rcm

import (
	"context"
	"net/netip"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// DatagramQKey is the Q_Key of all UD QPs that meet by this package
// (RDMA_UDP_QKEY, rdma/rdma_cm.h of the kernel).
const DatagramQKey = 0x01234567

// The most private data of the messages about UD QPs, in bytes: what the IB
// connection manager leaves to users of port space UDP (SIDR_REQ and SIDR_REP,
// rdma/ib_cm.h of the kernel, and the header of 36 bytes that REQ has too).
const (
	MaxLookupData      = 180 // DatagramParam.PrivateData of DatagramRoute.Lookup
	MaxLookupReplyData = 136 // DatagramParam.PrivateData of DatagramRequest.Accept, and DatagramRequest.Reject
)

// A Destination is where messages of a UD QP go. An address handle of AV
// (verbs.PD.CreateAH), QPN and QKey are the verbs.Datagram of a request.
type Destination struct {
	AV   verbs.AddressVector
	QPN  uint32
	QKey uint32
	// PrivateData is what the other side gave to Accept. Kernel devices pad it
	// with zeros to MaxLookupReplyData. A group has none.
	PrivateData []byte
}

// DatagramParam says how a UD QP begins; the zero value is ready to use.
type DatagramParam struct {
	// PrivateData goes to the peer with the question (MaxLookupData) or the
	// answer (MaxLookupReplyData).
	PrivateData []byte
	// Prepare, unless nil, is called with a QP that was in RESET, in INIT,
	// before anybody knows of it: the place to post receives. It must not answer
	// another request with the same QP.
	Prepare func(*verbs.QP) error
}

// A DatagramRoute is the way to one address, found by
// Fabric.ResolveDatagram. It must be given to Lookup once, or closed.
type DatagramRoute interface {
	// Device is the name for verbs.Open of the device to make the QP on.
	Device() string
	// Port is the device's port that the messages go over, from 1.
	Port() uint8
	LocalAddr() netip.Addr
	RemoteAddr() netip.AddrPort
	// Lookup asks for the QP behind the address, and waits for the answer until
	// ctx ends. Before, it brings qp from RESET to RTS with DatagramQKey. A QP
	// that is at RTS with that Q_Key may be given too: one QP can have any number
	// of destinations. If the peer refuses, the error is a *RejectedError. On any
	// error a QP that was in RESET is there or in ERR.
	//
	// The peer learns nothing of qp but what PrivateData says. It can answer by
	// what it receives: verbs.PD.CreateReplyAH.
	Lookup(ctx context.Context, qp *verbs.QP, p DatagramParam) (Destination, error)
	// Close gives up a route that was not used. After Lookup it does nothing.
	Close() error
}

// A DatagramListener takes the questions of Lookup. It is a Listener but for
// the type of its requests.
type DatagramListener interface {
	// Accept returns the next request, as Listener.Accept does.
	Accept(ctx context.Context) (DatagramRequest, error)
	Addr() netip.AddrPort
	// Stats returns what the listener has seen so far.
	Stats() ListenStats
	// Close stops listening and refuses what waits for Accept.
	Close() error
}

// A DatagramRequest is a peer that asks for a QP. Exactly one of Accept and
// Reject must be called. There is no connection: nobody tells when the peer is
// gone.
type DatagramRequest interface {
	// Device is the name for verbs.Open of the device to make the QP on.
	Device() string
	// Port is the device's port that the messages go over, from 1.
	Port() uint8
	// PrivateData is what the peer gave to Lookup. Kernel devices pad it with
	// zeros to MaxLookupData.
	PrivateData() []byte
	// LocalAddr is the address that the peer asked at.
	LocalAddr() netip.AddrPort
	RemoteAddr() netip.AddrPort
	Peer() Peer
	// Accept answers with qp, which it brings from RESET to RTS as Lookup does,
	// or which is there already: one QP may be the answer to all.
	Accept(qp *verbs.QP, p DatagramParam) error
	// Reject refuses with ReasonConsumer and up to MaxLookupReplyData bytes.
	Reject(privateData []byte) error
}

// A GroupRoute is the way to a multicast group, found by Fabric.ResolveGroup.
// It must be given to Join once, or closed.
type GroupRoute interface {
	// Device is the name for verbs.Open of the device to make the QP on.
	Device() string
	// Port is the device's port that the messages go over, from 1.
	Port() uint8
	LocalAddr() netip.Addr
	Group() netip.Addr
	// Join makes the port a member of the group, and waits until it is one or ctx
	// ends. qp then receives what is sent to the group. A QP in RESET goes to
	// RTS with the group's Q_Key, one at RTS must have it; that is DatagramQKey
	// but on InfiniBand, where the group's creator chooses it. A QP may be in
	// several groups, and answer to Lookup too. On any error a QP that was in
	// RESET is there or in ERR.
	Join(ctx context.Context, qp *verbs.QP, p JoinParam) (Membership, error)
	// Close gives up a route that was not used. After Join it does nothing.
	Close() error
}

// JoinParam says how to join a group; the zero value is ready to use.
type JoinParam struct {
	// SendOnly joins without receiving, so that no network carries the group's
	// messages here. On InfiniBand the subnet manager must know of it.
	SendOnly bool
	// Prepare is that of DatagramParam.
	Prepare func(*verbs.QP) error
}

// A Membership is that of a QP in a group. The caller calls Leave before it
// closes the QP.
type Membership interface {
	// Destination is where messages to the group go. A sender need not be a
	// member, if it knows that.
	Destination() Destination
	// Ended is closed when the membership has ended: by Leave, by the network or
	// by removal of the device.
	Ended() <-chan struct{}
	// Err says why it ended, nil as long as it lasts: an error that wraps
	// net.ErrClosed after Leave, otherwise syscall.ECONNRESET.
	Err() error
	// Leave takes the QP, and the port, out of the group. Calls after the first
	// do nothing.
	Leave() error
}
