// Package rcm connects queue pairs: it finds out over which device an address
// can be reached, carries the two QPs' numbers and up to a few hundred bytes
// of the caller's between the sides, moves both QPs through their states, and
// tells when the other side is gone.
//
// A [Fabric] does this for one kind of device. The dialing side asks it to
// Resolve an address, makes a QP on the device that the [Route] names, and
// calls Connect; the other side has a [Listener], looks at each [Request],
// makes a QP and calls Accept, or Reject. Both end with a [Conn], which is
// about the connection only: data goes through the QP.
//
//	route, err := rcm.Soft().Resolve(ctx, addr)
//	dev, err := verbs.Open(route.Device())
//	// ... PD, CQ, QP
//	conn, err := route.Connect(ctx, qp, rcm.ConnParam{PrivateData: hello})
//
// Receives are best posted from ConnParam.Prepare, which runs before the peer
// can send. Everything here may be called from any goroutine.
//
// [Soft] is the fabric of the software HCA, [Kernel] that of the kernel's RDMA
// devices; code written for one works over the other.
//
// # The kernel's devices
//
// [Kernel] connects over InfiniBand, RoCE and iWARP, by the kernel's connection
// manager rdma_cm: the routing table says which device leads to an address, and
// the peer may be any program that uses rdma_cm, on any host. [KernelOn] and
// [KernelWith] restrict it to a device, a port of it, or a transport. The
// process has one descriptor of /dev/infiniband/rdma_cm for all connections,
// and commands and events go over it in the form of rdma/rdma_user_cm.h. What
// goes over the wire is the connection managers' own: messages of the IB
// specification, volume 1, chapter 12, with the header of its annex A11 in the
// private data, or MPA (RFC 5044 and 6581).
//
// # The software HCA's backend
//
// [Soft] connects processes of one host. A listener on an address is a
// SOCK_SEQPACKET socket in the abstract Unix namespace, called
//
//	ramjet/rcm1/127.0.0.1:9000        one address
//	ramjet/rcm1/0.0.0.0:9000          all IPv4 addresses
//	ramjet/rcm1/[::]:9000             all addresses
//	ramjet/rcm1/[::]:9000/v6only      all IPv6 addresses
//
// and a dial looks for the names that can serve its address in the order
// given here, if the address belongs to the host. Anybody may take such a
// name, so both sides ask the kernel who the other is (SO_PEERCRED) before a
// byte is exchanged. The socket stays open as long as the connection: its
// hang-up is the peer's death.
//
// One packet is one message. All numbers are in network byte order, reserved
// bytes are 0. Each message begins with
//
//	at size
//	 0   4   magic "RJCM"
//	 4   1   version, 1
//	 5   1   kind: 1 REQ, 2 REP, 3 REJ, 4 RTU, 5 DREQ
//	 6   2   length of the message with this header
//
// REQ, dialer to acceptor:
//
//	at size
//	 8  16   GID of the dialer's device
//	24   4   number of its QP, 24 bits
//	28   4   its first packet number, 24 bits
//	32   1   responder resources of the dialer
//	33   1   initiator depth of the dialer
//	34   2   length of the private data, 0 to 56
//	36  20   source address
//	56  20   destination address as dialed
//	76   -   private data
//
// where an address is
//
//	at size
//	 0  16   IPv6 address, or IPv4-mapped
//	16   2   port, not 0
//	18   1   family, 4 or 6
//	19   1   reserved
//
// REP, acceptor to dialer, whose QP is at RTS by then; resources and depth
// are what was agreed on:
//
//	at size
//	 8  16   GID of the acceptor's device
//	24   4   number of its QP, 24 bits
//	28   4   its first packet number, 24 bits
//	32   1   responder resources of the acceptor
//	33   1   initiator depth of the acceptor
//	34   2   length of the private data, 0 to 196
//	36   -   private data
//
// REJ, acceptor to dialer, which then hangs up:
//
//	at size
//	 8   2   reason, see ReasonConsumer and its neighbours
//	10   2   length of the private data, 0 to 148
//	12   -   private data
//
// RTU, dialer to acceptor, says that the dialer's QP is at RTS; DREQ, either
// way, that the sender has moved its QP to ERR and hangs up. Both are the
// header alone. An acceptor answers a version that it does not know with a
// REJ of reason 31 in version 1.
package rcm
