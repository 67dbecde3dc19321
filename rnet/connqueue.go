package rnet

// connQueue is a list of Conns, first in first out, linked through the Conns
// themselves: joining needs no memory, leaving from the middle no search. A
// Conn has a link for each list it can be in. txMu guards lists and links.
type connQueue struct {
	head, tail *Conn
}

type connLink struct {
	prev, next *Conn
	in         bool
}

// The lists that a Conn can be in.
const (
	txLink    = 0 // writers that wait for credit
	ctlLink   = 1 // streams with control frames to send
	sentLink  = 2 // who waits until the device has sent something
	shareLink = 3 // writers that wait for the session window
)

func (q *connQueue) empty() bool  { return q.head == nil }
func (q *connQueue) first() *Conn { return q.head }

func (q *connQueue) push(c *Conn, link int) {
	l := &c.send.links[link]
	if l.in {
		return
	}
	*l = connLink{prev: q.tail, in: true}
	if q.tail == nil {
		q.head = c
	} else {
		q.tail.send.links[link].next = c
	}
	q.tail = c
}

// pushFirst lets c in at the head.
func (q *connQueue) pushFirst(c *Conn, link int) {
	l := &c.send.links[link]
	if l.in {
		return
	}
	*l = connLink{next: q.head, in: true}
	if q.head == nil {
		q.tail = c
	} else {
		q.head.send.links[link].prev = c
	}
	q.head = c
}

func (q *connQueue) remove(c *Conn, link int) {
	l := &c.send.links[link]
	if !l.in {
		return
	}
	if l.prev == nil {
		q.head = l.next
	} else {
		l.prev.send.links[link].next = l.next
	}
	if l.next == nil {
		q.tail = l.prev
	} else {
		l.next.send.links[link].prev = l.prev
	}
	*l = connLink{}
}

func (q *connQueue) pop(link int) *Conn {
	c := q.head
	q.remove(c, link)
	return c
}
