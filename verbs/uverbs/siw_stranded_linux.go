package uverbs

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// What siw leaves to us once a QP has failed.
//
// The kernel's siw driver flushes the requests that it finds in the queues at
// the moment when the QP fails, and never looks at the queues again. Requests
// that were posted a moment later, or later still, would never complete: they
// are stranded. So once the QP is in ERR for certain, which MODIFY_QP makes
// sure of because it waits for the kernel's own flush, the requests that are
// still in the queues are taken back, and complete here.

// A strandedQueue is a qpQueue whose requests the kernel leaves where they are
// when the QP is in ERR.
type strandedQueue interface {
	// takeBack empties the queues. The kernel does not use them any more.
	takeBack() (sends, recvs []uint64)
}

// takeBack completes what is stranded. The QP is in ERR.
func (q *qp) takeBack() {
	var sends, recvs []uint64
	q.lock()
	if s, ok := q.send.queue.(strandedQueue); ok {
		sends, recvs = s.takeBack()
	}
	q.unlock()
	q.sendCQ.flushed(q.num, sends)
	q.recvCQ.flushed(q.num, recvs)
}

// strands reports whether the QP needs takeBack.
func (q *qp) strands() bool {
	_, siw := q.dev.driver.(siw)
	return siw
}

// flushed adds completions of requests that the kernel did not flush. They
// come after all that the kernel has written, and wake whoever waits.
func (c *cq) flushed(qpn uint32, ids []uint64) {
	if len(ids) == 0 {
		return
	}
	c.mu.Lock()
	for _, id := range ids {
		c.stranded = append(c.stranded, verbs.WC{ID: id, QPN: qpn, Status: verbs.WCWRFlushErr})
	}
	c.mu.Unlock()
	if c.ch != nil {
		c.ch.Wake()
	}
}

// takeStranded moves such completions into wcs. The caller holds mu, and has
// found the queue empty.
func (c *cq) takeStranded(wcs []verbs.WC) (n int, failed bool) {
	n = copy(wcs, c.stranded)
	c.stranded = c.stranded[:copy(c.stranded, c.stranded[n:])]
	return c.count(wcs[:n])
}

// dropStranded drops those of q. The caller holds mu.
func (c *cq) dropStranded(q *qp) {
	c.stranded = slices.DeleteFunc(c.stranded, func(wc verbs.WC) bool { return wc.QPN == q.num })
}

// room is how many of n requests of a failed QP may still be taken: one that
// posts and never polls must not fill the memory.
func (c *cq) room(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return max(0, min(n, c.size-len(c.stranded)))
}

// iwarpTransition says which transitions of an iWARP QP are the caller's: into
// INIT, and into ERR. The others the kernel's connection manager makes, and
// there is no way back to RESET (RFC 5040 and 5041 have no such states).
func iwarpTransition(from, to verbs.QPState) error {
	switch {
	case to == from, to == verbs.QPStateInit && from == verbs.QPStateReset, to == verbs.QPStateErr && from != verbs.QPStateReset:
		return nil
	case to == verbs.QPStateErr:
		return fmt.Errorf("%w: a QP in %v cannot fail", verbs.ErrInvalid, from)
	}
	return fmt.Errorf("%w: an iWARP QP goes from %v to %v by its connection manager only", verbs.ErrUnsupported, from, to)
}

// siwBell looks at what the kernel answered to the doorbell. siw refuses it
// while it takes the QP out of RTS, and flushes the requests, or they are
// stranded then. For a request that it cannot execute it refuses it too, and
// leaves the request at the head of the queue: the QP has failed then.
func siwBell(err error) (stuck bool, _ error) {
	switch {
	case errors.Is(err, unix.ENOTCONN):
		return false, nil
	case errors.Is(err, unix.EINVAL):
		return true, nil
	}
	return false, err
}
