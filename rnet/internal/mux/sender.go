package mux

import (
	"sync"
	"sync/atomic"

	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
)

// sender is what a session has to do with sending. The way of a byte out:
//
//  1. Conn.Write sends what is a frame and need not wait under txMu alone (writeFrame).
//     Otherwise it takes the stream's write lock and cuts p into pieces of at
//     most a frame's payload; send takes txMu for each.
//  2. The piece needs the stream's window, the session's (session_window.go) and room on the
//     link, which sends it at once.
//  3. If something is missing, the writer queues up in txWait or shareWait and waits; the
//     owner of the poll lock wakes it when credit has come.
type sender struct {
	txMu sync.Mutex // guards all of sender but the atomics; the link's send lock

	txWait   waitQueue // writers that wait for room
	awake    int       // writers that were woken from it and have not come back yet
	promised int       // bytes of the ring that they will take
	ctlQueue waitQueue // streams with control frames to send
	sentWait waitQueue // who waits until the device has sent something
	lastFin  link.Mark // of the last end of a stream
	refusals []uint32  // streams that the peer opened and we do not take, to be reset
	ctlPing  bool
	ctlAway  bool
	ctlShare bool
	ctlLast  bool        // the answer to the peer's GO_AWAY
	last     bool        // it was queued: no OPEN may be any more
	ctlAddrs []SlotAddrs // addresses that the peer was not told yet

	sharedSender

	winScratch [8]byte // payload of a WINDOW frame
	addrsFrame [AddrsLen]byte

	framesOut, bytesOut uint64

	// txBlocked says that something waits for credit. It is set under txMu
	// before the link is asked again; the link notes credit before its Poll returns,
	// after which the caller looks at txBlocked: one of the two sees the other.
	txBlocked atomic.Bool

	// sentBlocked says the same of what the device has sent, for sentWait.
	sentBlocked atomic.Bool
}
