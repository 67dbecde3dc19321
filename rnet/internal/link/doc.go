// Package link carries frames over one RC queue pair: a [Link] is one end of it.
// It knows what lies between two processes (rings, slots, the bounce buffer, what
// stands in for immediates, probes), and nothing of what the frames mean.
//
// The life of a link:
//
//	l, err := link.New(cfg, user)       // QP, CQ, receive ring
//	conn, err := route.Connect(ctx, l.QP(), l.ConnParam(hello))
//	err = l.Connect(peer)               // the peer's [Params], from its hello
//	l.Room(n), l.Send(header, payload)  // under the send lock
//	l.Poll()                            // as the owner of the poll lock: calls user.Frame
//	l.Fail(); l.Poll() ...; l.Close()
//
// # The way of a frame out
//
//  1. Room says how much of a payload can go now: it needs a slot (a receive that the
//     peer has posted), room in the peer's ring, in the bounce buffer where there is
//     one, and in the send queue. What has come back of these was noted by Poll in
//     atomics, and is looked at only when what was known is used up.
//  2. Send writes header and payload to their place in the peer's ring by one
//     WRITE_WITH_IMM: inline, if the device places inline data at once, otherwise by
//     way of the bounce buffer. Devices without immediates: immediates.go.
//  3. Gather collects small frames, which Flush sends as one message.
//
// # The way of a frame in
//
//  1. Poll takes a batch off the CQ. A completion of a WRITE_WITH_IMM says that a
//     message of so many bytes lies at the next place of the receive ring.
//  2. Each frame of it goes to User.Frame, which copies the payload, or keeps it where
//     it lies (Retain).
//  3. When the batch is done, what nobody keeps is released, receives are posted again,
//     and the peer is told when a quarter of either has come together.
//  4. The user frees a kept piece (Free). A piece that is kept for long is moved out
//     before it holds up the rest (Holder.MoveOut).
//
// # Locks
//
// The poll lock is the user's: Poll, Collect and Release are called by its owner. The
// send lock is the user's too, and guards all that is sent: it is given to New, and held
// by callers of the methods of send.go. The link takes it itself to send credit and probes.
// The receive lock is the link's, and guards the accounts of the receive ring: Frame is
// called with it held. The order is poll lock, receive lock, send lock, what
// Holder.MoveOut takes.
package link
