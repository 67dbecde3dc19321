// Package soft is the software HCA: an RDMA device over the shared memory of one
// host, between processes and within one. It needs no driver, no daemon and no
// rights. Import it, and the device is there:
//
//	import _ "github.com/seed-b9b531af/ramjet/verbs/soft"
//
//	ctx, err := verbs.Open("soft0")
//
// Everything else goes by package verbs. Few programs need the rest:
// [SetPeerPolicy] says which processes may be peers, [InjectFaults] makes
// things go wrong in the tests of callers.
//
// # How it works
//
// The sender executes each operation in its own PostSend. A WRITE is one copy
// into the peer's region, which is mapped here. WRITE_WITH_IMM adds a descriptor
// to a ring that the peer's CQ polls; a short one of QPs with PlaceAtPoll travels in the descriptor,
// and the poll copies it. READ and atomics work on the mapped region, and
// so does what needs no wire: BIND_MW, LOCAL_INV, FLUSH.
// A SEND goes through a buffer beside the ring. No goroutine takes part while
// things go well.
//
// To read the code, begin with internal/protocol, which has the shared memory, its
// writers and the order of their steps; then send_linux.go, the way of a message
// out, with operation_linux.go, what each operation does; and inbound_linux.go, the way
// in. How two QPs find each other is in pairing_linux.go, and between processes in
// handshake_linux.go.
//
// A device is named by its GID, which is random for each open context. QPs find
// each other by GID and QP number: in one process by a table, between processes
// over an abstract Unix socket that is named by the GID. The socket stays open:
// over it the peers exchange the descriptors of regions when an rkey is used for
// the first time, and its hang-up is the death of the peer, which moves the QP to
// ERR. What had been sent before is delivered before receives are flushed. The
// bytes are in docs/protocol.md.
//
// # Differences from hardware
//
//   - A request completes when it was executed, so an unsignaled one holds no
//     slot of the send queue, and inline data has no useful limit.
//   - A QP learns of the failure or the end of its peer without sending, and
//     goes to ERR. That alone raises no asynchronous event.
//   - The ACK timeout counts only while the peer is not paired, or has not answered yet about an
//     rkey. In the first case timeout and retries together are at least 0.5 and at most 5 seconds,
//     in the second 5 seconds. Only time in which this process runs counts, not time in which it is
//     stopped or waits for a processor.
//   - While an SRQ is empty, messages wait in the rings of their QPs; a request into an SRQ
//     completes when the receiver polls, or after a millisecond if it does not.
//   - A message of a UD QP that is longer than the receive is dropped, and the receive
//     stays. Between processes UD goes through the kernel, and so in microseconds.
//     Members of a multicast group are found in processes of the same user, within
//     100 ms of their joining.
//   - What a UC QP sends before it is paired waits for that. One whose peer has gone
//     through RESET loses what it sends until it goes there too.
//   - A memory window bounds only a peer that follows the rules. A hostile process that got its key
//     reaches the whole region: to share a part with somebody you do not trust, register it alone.
//   - FLUSH finds everything where it belongs; there is no persistent memory.
//   - A slice of the caller (RegisterMR) is reached by QPs of this process
//     only; others are refused with WCRemAccessErr.
//
// # Trust
//
// The kernel says who the other process is (SO_PEERCRED). Without
// [SetPeerPolicy] it has to be of the same user. A peer maps the inbound segment
// of the QP that it is paired with, and the regions that it got a key for, the
// read-only ones read-only. Whatever it writes there is read once and checked
// when it is used; what breaks the rules ends the pair with
// [verbs.EventQPFatal] and harms nothing else. Peers cannot truncate what we have mapped:
// descriptors that come from them must be sealed memfds of the announced size, or Unix sockets.
//
// A peer that is admitted can wake us for nothing.
package soft
