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
// The receiver has to be told so with the message ([Rx.Restart]).
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
// released. So what tells of credit alone must need neither ring space nor one of the
// receives that are counted: an immediate holds all it says, and the receiver posts some
// receives beyond those.
//
// The duties of the receiving side, without which the other end may wait for ever: take
// and [Rx.Place] what arrives whatever the application does, and post its receive again;
// after every Place move the oldest retained message elsewhere while [Rx.SpillDue]; tell
// of credit when [Rx.CreditDue] or [RecvSlots.CreditDue] says so and nothing else is sent
// that would, also after the application has read. A message longer than an eighth of the
// ring may wait for ever for a contiguous piece (a half may be retained, a quarter not
// told of), so senders shorten theirs to [Tx.Room].
//
// # How it is known
//
// The tests explore every order in which two ends that use these types can send, take
// and read messages. They show that no message is overwritten and no credit deadlocked,
// and that each of a list of plausible mistakes is found.
package ring
