package soft

import (
	"sync"
	"sync/atomic"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// localQueue holds the completions that this process itself produced.
// Posters push under mu, pollers take under mu.
type localQueue struct {
	waiting atomic.Int64 // entries in the ring
	broken  atomic.Bool  // an entry was lost

	mu    sync.Mutex
	ring  []localCompletion // guarded by mu: grows with use
	most  int               // guarded by mu: how long it may become
	first int // guarded by mu: the oldest entry
	n     int // guarded by mu: how many
}

type localCompletion struct {
	wc verbs.WC
	q  *qp
}

// shortQueue is how many entries a queue has before it is used.
const shortQueue = 16

func (l *localQueue) init(cqe int) {
	l.most = cqe
	l.ring = make([]localCompletion, min(cqe, shortQueue))
}

func (l *localQueue) capacity() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.most
}

// push appends; false if there is no room.
func (l *localQueue) push(q *qp, wc verbs.WC) bool {
	l.mu.Lock()
	if l.n == len(l.ring) {
		if l.n == l.most {
			l.mu.Unlock()
			return false
		}
		l.move(min(2*l.n, l.most))
	}
	at := l.first + l.n
	if at >= len(l.ring) {
		at -= len(l.ring)
	}
	l.ring[at] = localCompletion{wc, q}
	l.n++
	l.waiting.Store(int64(l.n))
	l.mu.Unlock()
	return true
}

// take moves the oldest entries into wcs and gives their QPs the send queue
// slots back.
func (l *localQueue) take(c *cq, wcs []verbs.WC) int {
	l.mu.Lock()
	n := min(l.n, len(wcs))
	var q *qp
	run := int32(0) // entries of q in a row, to be returned together
	for i := range n {
		e := &l.ring[l.first]
		if l.first++; l.first == len(l.ring) {
			l.first = 0
		}
		wcs[i] = e.wc
		if e.q != q {
			q.polled(run)
			q, run = e.q, 0
		}
		run++
		e.q = nil
	}
	q.polled(run)
	l.n -= n
	l.waiting.Store(int64(l.n))
	l.mu.Unlock()
	c.work.Add(int64(-n))
	return n
}

// purge drops the completions of a QP that is destroyed.
func (l *localQueue) purge(c *cq, q *qp) {
	l.mu.Lock()
	defer l.mu.Unlock()
	kept := 0
	for i := range l.n {
		e := l.ring[(l.first+i)%len(l.ring)]
		if e.q == q {
			continue
		}
		l.ring[(l.first+kept)%len(l.ring)] = e
		kept++
	}
	for i := kept; i < l.n; i++ {
		l.ring[(l.first+i)%len(l.ring)].q = nil
	}
	c.work.Add(int64(kept - l.n))
	l.n = kept
	l.waiting.Store(int64(kept))
}

// resize changes the capacity; false if what waits does not fit.
func (l *localQueue) resize(cqe int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if cqe < l.n {
		return false
	}
	l.most = cqe
	if cqe < len(l.ring) {
		l.move(cqe)
	}
	return true
}

// move gives the queue a ring of so many entries, which are enough. mu is held.
func (l *localQueue) move(entries int) {
	ring := make([]localCompletion, entries)
	for i := range l.n {
		ring[i] = l.ring[(l.first+i)%len(l.ring)]
	}
	l.ring, l.first = ring, 0
}
