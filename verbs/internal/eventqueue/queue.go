// Package eventqueue has the asynchronous events of a device that wait for NextEvent.
package eventqueue

import (
	"sync"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// Backlog bounds the events that wait.
const Backlog = 1024

// Queue holds events, oldest first. Its methods may be called at once. The zero value is
// empty, and takes memory only for events that wait: most devices never have one.
type Queue struct {
	mu      sync.Mutex
	changed sync.Cond           // Next waits for it
	waiting []verbs.DriverEvent // guarded by mu
	closed  bool                // guarded by mu
}

// Raise queues an event. It reports false if Backlog events wait: a program that never
// fetches them loses the newest.
func (q *Queue) Raise(ev verbs.DriverEvent) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == Backlog {
		return false
	}
	q.waiting = append(q.waiting, ev)
	q.changed.Signal()
	return true
}

// Next waits for an event, or for Close: then its error is verbs.ErrClosed. What was
// raised before Close still comes.
func (q *Queue) Next() (verbs.DriverEvent, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.waiting) == 0 {
		if q.closed {
			return verbs.DriverEvent{}, verbs.ErrClosed
		}
		q.changed.L = &q.mu
		q.changed.Wait() // ends with Raise or Close
	}
	ev := q.waiting[0]
	q.waiting[0] = verbs.DriverEvent{} // it names objects of the device
	if q.waiting = q.waiting[1:]; len(q.waiting) == 0 {
		q.waiting = nil
	}
	return ev, nil
}

// Len is how many events wait.
func (q *Queue) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting)
}

// Close ends Next. It may be called more than once.
func (q *Queue) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.changed.Broadcast()
}
