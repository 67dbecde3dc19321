// Package ring is the arithmetic of registered ring buffers and of the credits
// that guard them: positions, wrapping, reservation, release, windows. It does
// no I/O, starts no goroutine, knows nothing of verbs and imports nothing of
// this module, so that everything in it can be tested without a device and
// explored exhaustively.
//
// # Positions
//
// A receive ring is memory of a power-of-two size that the peer writes into.
// All positions are absolute counts of bytes since the connection was made;
// they are never reset, and the offset in the ring is derived as position
// modulo size. Messages start at multiples of [Align]. A message is always
// contiguous: one that does not fit before the end of the ring starts at
// offset 0, and the bytes in between are skipped. Nothing is written to say
// so: sender and receiver compute the same rule from the length alone, which
// arrives with the completion.
//
// # Credits
//
// A credit is a position (or an absolute count) too, never a difference. A
// later one therefore heals an earlier one that was lost, and a stale one does
// no harm. Space is only ever released contiguously. What comes from the peer
// is checked: a credit for bytes never sent is [ErrCredit], data for which no
// credit was given is [ErrOverrun]; after either the connection is over.
//
// # The types
//
// [Tx] is the sender's twin of the peer's ring, [Rx] the receiver's side of its
// own. [SendSlots] and [RecvSlots] count messages, because every message also
// consumes one posted receive of the peer. [Link] ties those four together for
// one connection and keeps back what credit messages need, so that two ends
// that are both full can still tell each other. [SendWindow] and [RecvWindow]
// are the flow control of one stream of many on the connection.
//
// The path of a message: the sender asks Link.Room, reserves with Link.Send,
// writes into the peer's ring, stamps the header with Link.Stamp and announces
// the length. The receiver calls Rx.Place with that length, applies the stamp
// with Link.Apply, and consumes the message at once or calls Rx.Retain; when
// Link.CreditDue says so, it sends a credit message.
//
// # Messages that always go through
//
// A message of at most Link.MaxMessage bytes finds room in the end, wherever
// the ring stands, if the receiver does what the comment of [Link] asks of it.
// A longer one may wait for ever for a contiguous piece, so senders shorten it
// to Room.
//
// # Concurrency
//
// No type here may be used by two goroutines at once; callers hold the lock of
// the connection or stream. No method but Init, and the rare growth of the list
// of retained messages, allocates.
package ring
