// Package rcm connects queue pairs. It finds out over which device an address can
// be reached, carries the numbers of both QPs and up to a few hundred bytes of
// the caller's between the sides, moves the QPs through their states, and tells
// when the other side is gone.
//
// # From a fabric to a connection
//
// A [Fabric] connects over one kind of device: [Soft] over the software HCA,
// between processes of one host; [Kernel] over the kernel's RDMA devices, with
// any host. Code that is written for one works over the other.
//
// The dialing side asks the fabric for a [Route] to an address, makes a QP on the
// device that the route names, and calls Connect:
//
//	route, err := rcm.Soft().Resolve(ctx, addr)
//	dev, err := verbs.Open(route.Device())
//	// ... PD, CQ, QP
//	conn, err := route.Connect(ctx, qp, rcm.ConnParam{PrivateData: hello})
//
// The other side has a [Listener], looks at each [Request], makes a QP, and calls
// Accept or Reject:
//
//	ln, err := rcm.Soft().Listen(addr, rcm.ListenConfig{})
//	request, err := ln.Accept(ctx)
//	conn, err := request.Accept(ctx, qp, rcm.ConnParam{PrivateData: welcome})
//
// Both end with a [Conn], which is about the connection only: data goes through
// the QP. Post receives in ConnParam.Prepare, which runs before the peer can
// send. A refusal is a [*RejectedError].
//
// Everything here may be called from any goroutine.
//
// # The kernel's devices
//
// [Kernel] connects over InfiniBand, RoCE and iWARP, by the kernel's connection
// manager rdma_cm: the routing table says which device leads to an address, and
// the peer may be any program that uses rdma_cm. [KernelOn] and [KernelWith]
// restrict it to a device, a port of it, or a transport. The process has one
// descriptor of /dev/infiniband/rdma_cm for all connections; commands and events
// have the form of rdma/rdma_user_cm.h. What goes over the wire is the connection
// managers' own: messages of the InfiniBand specification, volume 1, chapter 12,
// with the header of its annex A11 in the private data, or MPA (RFC 5044 and
// 6581).
//
// # The software HCA
//
// [Soft] connects processes of one host over a Unix socket in the abstract
// namespace, whose name is made of the listener's address. Anybody may take such
// a name, so both sides ask the kernel who the other is (SO_PEERCRED) before a
// byte is exchanged. The socket stays open as long as the connection: its hang-up
// is the peer's death. [SoftOn] and [SoftWith] choose the device and the peers.
// The names and each byte are in docs/protocol.md.
package rcm
