package mux

// waitQueue is a list of streams, first in first out, linked through their send halves:
// joining needs no memory, leaving from the middle no search. A send half has a link
// for each queue that it can be in. The send lock guards queues and links.
type waitQueue struct {
	head, tail *sendHalf
}

type waitLink struct{ prev, next *sendHalf }

// The queues that a stream can be in.
const (
	roomLink  = 0 // writers that wait for room
	ctlLink   = 1 // streams with control frames to send
	sentLink  = 2 // who waits until the device has sent something
	shareLink = 3 // writers that wait for the session window
)

// waits reports whether a send half is in a queue.
func (w *sendHalf) waits(link int) bool { return w.queues&(1<<link) != 0 }

func (q *waitQueue) empty() bool      { return q.head == nil }
func (q *waitQueue) first() *sendHalf { return q.head }

func (q *waitQueue) push(w *sendHalf, link int) {
	if w.waits(link) {
		return
	}
	w.queues |= 1 << link
	w.links[link] = waitLink{prev: q.tail}
	if q.tail == nil {
		q.head = w
	} else {
		q.tail.links[link].next = w
	}
	q.tail = w
}

// pushFirst lets w in at the head.
func (q *waitQueue) pushFirst(w *sendHalf, link int) {
	if w.waits(link) {
		return
	}
	w.queues |= 1 << link
	w.links[link] = waitLink{next: q.head}
	if q.head == nil {
		q.tail = w
	} else {
		q.head.links[link].prev = w
	}
	q.head = w
}

func (q *waitQueue) remove(w *sendHalf, link int) {
	if !w.waits(link) {
		return
	}
	l := &w.links[link]
	if l.prev == nil {
		q.head = l.next
	} else {
		l.prev.links[link].next = l.next
	}
	if l.next == nil {
		q.tail = l.prev
	} else {
		l.next.links[link].prev = l.prev
	}
	w.queues &^= 1 << link
	*l = waitLink{}
}

func (q *waitQueue) pop(link int) *sendHalf {
	w := q.head
	q.remove(w, link)
	return w
}
