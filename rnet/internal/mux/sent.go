package mux

import (
	"sync"
	"sync/atomic"

	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
)

// sentQueue is who waits until the device has sent something.
type sentQueue struct {
	mu      *sync.Mutex // the send lock, which guards queue
	link    *link.Link
	queue   waitQueue
	blocked atomic.Bool // somebody waits; as sender.blocked
}

// await puts w among those that the owner of the poll lock wakes when the mark is reached.
// It returns false if there is nothing to wait for.
func (q *sentQueue) await(w *sendHalf, until link.Mark) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	w.sentAt = until
	q.queue.push(w, sentLink)
	q.blocked.Store(true)
	if q.link.Reached(until) || q.link.Stopped() { // see blocked
		q.queue.remove(w, sentLink)
		return false
	}
	return true
}

// leave takes w out again, when something else has woken it.
func (q *sentQueue) leave(w *sendHalf) {
	q.mu.Lock()
	q.queue.remove(w, sentLink)
	q.mu.Unlock()
}

// wake is called by the owner of the poll lock after completions came that somebody waits
// for, and when the session is dead, which stops the link.
func (q *sentQueue) wake() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for w := q.queue.first(); w != nil; {
		next := w.links[sentLink].next
		if q.link.Reached(w.sentAt) || q.link.Stopped() {
			q.queue.remove(w, sentLink)
			w.wake()
		}
		w = next
	}
	if q.queue.empty() {
		q.blocked.Store(false)
	}
}
