// Package binding keeps which queue pair binds a memory window.
//
// A bind takes effect when its queue pair executes it, and gives the window the key that its
// post has chosen. Two queue pairs execute in no order: of two binds under way, that whose key
// the window has last is anybody's guess. So there is one queue pair at a time that has binds
// of a window under way.
package binding

import (
	"fmt"
	"sync"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// A Queue is the send queue of a queue pair.
type Queue interface {
	// Executed reports whether the request of a place is known to be executed, or never will
	// be. It waits for nobody.
	Executed(Place) bool
	Num() uint32
}

// A Place is that of a request in its queue.
type Place struct {
	Reset uint32 // how often the queue was emptied before
	// Count is of the completion that shows that the request is executed, its own or the next:
	// how many requests that give one were posted up to it.
	Count uint64
}

// A Bind is that of a window that was posted last. The zero value is none.
type Bind struct {
	queue Queue
	place Place
}

// Window is what a memory window has of this. The zero value is one that was never bound.
type Window struct {
	mu   sync.Mutex
	last Bind // guarded by mu
}

// Take is called before a bind is posted, by who holds the lock of the queue. Until that bind is
// executed no other queue pair takes the window: the error wraps verbs.ErrBusy. Otherwise it
// returns what GiveBack wants if the post fails.
func (w *Window) Take(q Queue, at Place) (before Bind, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before = w.last
	if other := before.queue; other != nil && other != q && !other.Executed(before.place) {
		return before, fmt.Errorf("%w: QP %d binds the memory window", verbs.ErrBusy, other.Num())
	}
	w.last = Bind{q, at}
	return before, nil
}

// GiveBack undoes a Take by q. Of several by one queue pair the last goes first. If q has
// failed meanwhile another queue pair may have taken the window, and keeps it.
func (w *Window) GiveBack(q Queue, before Bind) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last.queue == q {
		w.last = before
	}
}
