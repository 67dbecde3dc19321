package mux

import (
	"sync"
	"sync/atomic"

	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
)

// sender is the part of a mux that sends. The way of a byte out:
//
//  1. Conn.Write sends what is a frame and need not wait under the send lock alone
//     (writeFrame). Otherwise it takes the stream's write lock and cuts p into pieces of at
//     most a frame's payload; send takes the send lock for each.
//  2. The piece needs the stream's window, the session's (share) and room on the
//     link, which sends it at once.
//  3. If something is missing, the writer joins the queue for room or that of share, and
//     waits; the owner of the poll lock wakes it when credit has come.
type sender struct {
	mu   sync.Mutex // the send lock, also the link's; guards all of sender but the atomics
	link *link.Link
	mux  session

	room     waitQueue // writers that wait for room
	awake    int       // writers that were woken from it and have not come back yet
	promised int       // bytes of the ring that they will take
	share    senderShare
	control  controls
	cork     cork

	frames, bytes uint64 // of data, that were sent
	stalls        uint64 // sends that had to wait for the peer

	// blocked says that something waits for credit. It is set under mu before the link is
	// asked again; the link notes credit before its Poll returns, after which the caller
	// looks at blocked: one of the two sees the other.
	blocked atomic.Bool
}

// session is the mux as its sender sees it.
type session interface {
	Fail(cause error)
	onLoop() bool
}
