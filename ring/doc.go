// Package ring is the arithmetic of ring buffers that a peer writes into, and of
// the credit that guards them: positions, wrapping, reservation, release, windows.
// It does no I/O, starts no goroutine, knows nothing of verbs and imports nothing
// of this module, so everything in it can be tested without a device and explored
// exhaustively.
//
// # The types
//
//   - [Rx] is the receiver's side of its own ring: where a message is, and what
//     may be given back.
//   - [Tx] is the sender's twin of the peer's ring: where the next message goes,
//     and how much room there is.
//   - [RecvSlots] and [SendSlots] count messages, because every message also
//     consumes one posted receive of the peer.
//   - [RecvWindow] and [SendWindow] are the flow control of one stream of many on
//     a connection.
//   - [Link] ties the first four together for one connection.
//
// The way of a message: the sender calls [Tx.Reserve], writes into the peer's
// ring at that offset, and announces the length. The receiver calls [Rx.Place]
// with that length, consumes the message at once or calls [Rx.Retain] and later
// [Rx.Free], and tells the sender what is free ([Rx.TakeCredit], [Tx.Credit]). The
// example of the package shows it.
//
// No type here may be used by two goroutines at once: callers hold the lock of the
// connection or stream. No method but Init, and the rare growth of the list of
// retained messages, allocates.
//
// # Positions
//
// A receive ring is memory of a power-of-two size. All positions are absolute
// counts of bytes since the connection was made; they are never reset, and the
// offset in the ring is the position modulo its size, counted from the last restart.
// Messages start at multiples of [Align]. A message is always contiguous: one that
// does not fit before the end of the ring starts at offset 0, and the bytes in between
// are skipped. Nothing is written to say so: sender and receiver compute the same rule
// from the length alone, which arrives with the completion.
//
// A sender that knows that all is released may begin at offset 0 again ([Tx.Restart]).
// That the receiver has to be told, with the message ([Rx.Restart]).
//
// # Credit
//
// A credit is a position (or an absolute count) too, never a difference. A later
// one therefore makes up for an earlier one that was lost, and a stale one does no
// harm. Space is only ever released contiguously. What comes from the peer is
// checked: a credit for bytes never sent is [ErrCredit], data for which no credit
// was given is [ErrOverrun]; after either the connection is over.
//
// Two ends that are both full must still be able to tell each other what they have
// released. Either credit messages need neither ring space nor slots, because an
// immediate holds all they say and the receiver posts some receives beyond the
// slots, which is what package rnet does; or they come out of a reserve, which
// Link keeps. With a Link the sender asks Link.Room, reserves with Link.Send and
// stamps the header with Link.Stamp; the receiver applies the stamp with
// Link.Apply, and sends a credit message when Link.CreditDue says so.
//
// A message of at most Link.MaxMessage bytes finds room in the end, wherever the
// ring stands, if the receiver does what the comment of [Link] asks of it. A longer
// one may wait for ever for a contiguous piece, so senders shorten it to Room.
//
// # How it is known
//
// The tests explore every interleaving of two ends that use these types, with the
// steps in which they publish, arm, poll again, sleep and ring, down to the store
// buffer. They show that no wake-up is lost, no message overwritten and no credit
// deadlocked, for both ways of sending credit, and that each of a list of plausible
// mistakes is found. go test -deep explores larger loads.
package ring
