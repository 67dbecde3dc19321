// Package mux carries many byte streams over one link: a [Mux] is one end of them, a
// [Stream] one of them. It knows frames, the hello, streams and their windows; of work
// requests, devices and connections it knows nothing (package link, and rnet around both).
//
// The life of a mux:
//
//	m := mux.New(cfg, user)                    // user is told what happens
//	l, err := link.New(..., m.SendLock(), m)   // the link's user is the mux
//	m.Use(l)
//	err = m.Learn(hello)                       // what the peer says of itself; Hello is ours
//	m.SetAddrs(local, remote)
//	err = m.AwaitPeer(ctx, alive)              // when listening: the peer's message is first
//	err = m.Greet(ctx, alive)                  // first messages, to and fro
//	m.Start()                                  // its engine runs, until Fail
//	err = m.Open(st)                           // on the dialing side; User.Incoming on the other
//
// # Files
//
// What one meets first comes first in this list.
//
//	mux.go, mux_idle.go    a mux from New to its end; when it ends because it is not used
//	stream.go              a stream: what an application does with it, how it ends;
//	                       stream_show.go
//	receive_half.go        what has arrived and who waits for it; receive_peek.go, chunk.go
//	send_half.go           what may be sent and who waits to; send_reserve.go
//	frame.go               what comes: a poll, and each kind of frame
//	sender.go, wait_queue.go  what goes: data, and the queues of streams that wait to send
//	control.go, sent.go    control frames; waiting until the device has sent something
//	session_window.go      the window that all streams have together
//	hello.go, first_message.go  before there are streams
//	table.go, slots.go     streams by id; their slots and addresses
//	engine.go              what polls when nobody else does
//	loop.go, loop_*.go     event loops in its place; cork.go
//	deadline.go            the deadlines of a half
//
// A Mux has parts with a state of their own: a table of streams, addrs, a sender (with
// senderShare, controls and cork), a sentQueue, a receiverShare, a timedDeadline, and looped for
// an event loop. Methods of Mux are what needs several of them.
//
// # Who owns which memory
//
// Bytes to send are the caller's until Write returns, which has copied them to the peer's
// ring or to the link's bounce buffer. Reserve lends registered memory until Commit.
// Bytes that have arrived lie in the receive ring, which is the link's. If a Read waits
// they are copied to its buffer at once. Otherwise a stream keeps them as a list of
// [Chunk], which receiveHalf.mu guards: small ones are copied to memory of a pool, larger
// ones stay where they are, kept by a token of the link until they are read, or until the
// link needs the room and has them moved out (Chunk.MoveOut). A stream holds no more than
// its window, all streams together no more than the session window and 1 KiB each.
//
// # Which goroutine does what
//
// The owner of the poll lock (package wait) takes in what has arrived, for all streams:
// a goroutine that waits in Read or Write, the engine, or an event loop, which owns the
// lock of its muxes for good. It never waits for the application. A goroutine that has
// something to send posts it itself, under the send lock; the owner of the poll lock sends
// control frames, window updates and resets. The engine, one goroutine for each mux, polls while
// nobody else does, keeps the link alive, and frees everything at the end.
//
// # What wakes whom
//
//	waits                          woken by
//	Read, Peek, Discard, Next      data, FIN, RESET (deliver, finished, peerClosed, reset);
//	                               a deadline; Close; the end
//	Write: window used up          a WINDOW frame (grant); a deadline; Close; the end
//	Write: no room on the link     credit (creditCame), in the order of the queue; who is
//	                               before it and leaves the queue
//	Write: session window used up  a SESSION_WINDOW frame (shareGranted), in the order of
//	                               that queue
//	AwaitWrite                     whatever wakes a Write (sendHalf.wake); the Write that is lost
//	                               after the peer's Close (sendToNobody)
//	Reserve, Close on a network    the device's completion (sentQueue.wake)
//	Close that lingers, or finds   the FIN's departure (endSent); its timer
//	no room
//	Open: no slot                  ADDRS, GO_AWAY, the end of a stream or of the mux (table.vacated)
//	an event loop                  Owner.Wake, by the engine, an unblocked stream, a new
//	                               session
//
// A writer is in the queue before it looks for the last time whether there is room; credit
// is noted before the queue is looked at: see sender.blocked.
//
// # Locks
//
// The order is poll lock, receive lock of the link, send lock, receiveHalf.mu. callMu of
// the two halves, which let one Read and one Write run at a time, come before all of
// them, and so does awaiter.mu, which lets one AwaitWrite wait at a time. Any other lock of this
// package is held for a few instructions only.
package mux
