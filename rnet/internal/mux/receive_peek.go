package mux

import (
	"bufio"
	"fmt"

	"github.com/seed-b9b531af/ramjet/ring"
)

// peek is Peek without the lock. If what it returns is lent to the application,
// the chunk stays until the next call. Otherwise it is busy: it stays where it is
// until discard.
func (r *receiveHalf) peek(n int, lend bool) ([]byte, error) {
	r.endLoan()
	if n > int(r.st.m.cfg.Window) {
		return nil, fmt.Errorf("%w: %d bytes wanted, the window is %d", bufio.ErrBufferFull, n, r.st.m.cfg.Window)
	}
	r.lookIfShut(n)
	for {
		if err := r.readable(); err != nil {
			return nil, err
		}
		r.mu.Lock()
		p, ok := r.gather(n, lend)
		err := r.ended()
		if ok {
			err = nil
		}
		if ok || err != nil {
			if head := r.queue.head; len(p) > 0 {
				if lend {
					head.busy, r.lent = head.inRing, head
				} else { // also from a Close, which would give its memory to another stream
					head.busy, r.taking = true, 0
				}
			}
			r.mu.Unlock()
			return p[:len(p):len(p)], err
		}
		r.wait.Begin()
		r.waiting = true
		r.mu.Unlock()
		if n > int(r.st.m.cfg.Window)/2 {
			// The peer may have used up its window before so much is here,
			// because it was not told yet of what was consumed last.
			r.st.control(ctlWindow)
		}
		if r.readable() == nil {
			r.st.m.pollLock.Wait(&r.wait) // ended by data, FIN, reset, deadline, close, peer death
		}
	}
}

// gather makes the first n bytes of the queue lie together, and where they can
// be lent. mu is held.
func (r *receiveHalf) gather(n int, lend bool) (p []byte, ok bool) {
	head := r.queue.head
	if head == nil {
		return nil, false
	}
	if p = head.Unread(); lend && head.inRing && !r.st.m.cfg.Alone && len(p) >= n {
		// In the ring it would hold up others, for as long as the application
		// takes, and after a Close nobody can tell how long that is.
		n = len(p)
		r.merge(n)
		if head = r.queue.head; head == nil {
			return nil, false
		}
		p = head.Unread()
	} else if len(p) < n {
		all := 0
		for k := head; k != nil; k = k.next {
			all += len(k.Unread())
		}
		if all < n && r.ended() == nil {
			return nil, false
		}
		if head.next != nil {
			r.merge(min(n, all))
			if head = r.queue.head; head == nil {
				return nil, false
			}
			p = head.Unread()
		}
	}
	return p, len(p) >= n
}

// merge replaces the first chunks by one that holds at least n bytes. mu
// is held, and given up in between: the queue may be dropped meanwhile.
func (r *receiveHalf) merge(n int) {
	m := NewChunk(n)
	for len(m.buf) < n && r.queue.head != nil {
		k := r.queue.head
		part := k.Unread()
		part = part[:min(len(part), n-len(m.buf))]
		m.buf = append(m.buf, part...)
		k.r += len(part)
		if k.r == len(k.buf) {
			r.dropHead()
		}
	}
	if r.dropped {
		r.flow.Consume(len(m.buf))
		r.settle(false)
		m.Recycle()
		return
	}
	m.next = r.queue.head
	r.queue.head = m
	if m.next == nil {
		r.queue.tail = m
	}
}

// endLoan takes back what Peek gave out. callMu is held.
func (r *receiveHalf) endLoan() {
	k := r.lent
	if k == nil {
		return
	}
	r.mu.Lock()
	r.lent = nil
	queued := k == r.queue.head
	if queued {
		k.busy = false
	}
	r.mu.Unlock()
	if queued {
		return
	}
	if k.inRing {
		r.unreachable.Stop()
		r.st.m.link.Free(k.token)
	}
	k.Recycle()
}

// discard takes n bytes off the head of the queue, which has so many.
func (r *receiveHalf) discard(n int) {
	r.mu.Lock()
	if r.queue.head == nil { // closed meanwhile
		r.mu.Unlock()
		return
	}
	k := r.queue.head
	k.busy = false
	k.r += n
	if k.r == len(k.buf) {
		r.dropHead()
	}
	r.tookAndUnlock(n)
}

// loan is a piece of the ring that Peek gave out of a stream that was closed
// before it was given back.
type loan struct {
	m     *Mux
	token ring.Token
}

// end frees the piece when nothing refers to the stream any more. It is a
// cleanup, and must not wait.
func (l loan) end() { go l.m.link.Free(l.token) }
