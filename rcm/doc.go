// Package rcm connects queue pairs. It finds out over which device an address can
// be reached, carries the numbers of both QPs and up to a few hundred bytes of
// the caller's between the sides, moves the QPs through their states, and tells
// when the other side is gone.
//
// Most programs want package rnet instead, which has connections like those of
// package net and chooses the device. Package rcm is for programs that post work
// requests themselves.
//
// This package has the types and interfaces. They are implemented twice: by package
// rcm/softcm for the software HCA, between processes of one host, and by package
// rcm/kernelcm for the kernel's RDMA devices, with any host.
//
// # From a fabric to a connection
//
// A [Fabric] connects over one kind of device. Code that is written for one works
// over the other.
//
// The dialing side asks the fabric for a [Route] to an address, makes a QP on the
// device that the route names, and calls Connect:
//
//	fabric := softcm.New(softcm.Config{})
//	route, err := fabric.Resolve(ctx, addr)
//	dev, err := verbs.Open(route.Device())
//	// ... PD, CQ, QP
//	conn, err := route.Connect(ctx, qp, rcm.ConnParam{PrivateData: hello})
//
// The other side has a [Listener], looks at each [Request], makes a QP, and calls
// Accept or Reject:
//
//	ln, err := fabric.Listen(addr, rcm.ListenConfig{})
//	request, err := ln.Accept(ctx)
//	conn, err := request.Accept(ctx, qp, rcm.ConnParam{PrivateData: welcome})
//
// Both end with a [Conn], which is about the connection only: data goes through
// the QP. Post receives in ConnParam.Prepare, which runs before the peer can
// send. A refusal is a [*RejectedError].
//
// # Datagrams
//
// UD QPs are not connected: one QP sends to many and receives from many, and all it
// needs of another is a [Destination]. So the dialing side asks for one:
//
//	route, err := fabric.ResolveDatagram(ctx, addr)
//	// ... a UD QP on route.Device()
//	to, err := route.Lookup(ctx, qp, rcm.DatagramParam{PrivateData: hello})
//	ah, err := pd.CreateAH(to.AV)
//	// ... SendWR{Datagram: &verbs.Datagram{AH: ah, QPN: to.QPN, QKey: to.QKey}}
//
// and the other side answers each [DatagramRequest] of a [DatagramListener] with a QP,
// the same one for all if it likes. That is all: there is nothing to disconnect. An
// answer to a message needs no Lookup, as the message says where it came from.
//
// A multicast group is joined over a [GroupRoute], which ends with a [Membership]: the
// group's Destination until Leave.
//
//	route, err := fabric.ResolveGroup(ctx, netip.MustParseAddr("239.1.2.3"))
//	member, err := route.Join(ctx, qp, rcm.JoinParam{})
//
// Everything here may be called from any goroutine.
package rcm
