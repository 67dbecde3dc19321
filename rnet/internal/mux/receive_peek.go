package mux

import (
	"bufio"
	"fmt"

	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
)

// peek is Peek without the lock. If what it returns is lent to the application,
// it lies in ordinary memory, which stays until the next call. Otherwise only its length is
// of use, and discard follows.
func (r *receiveHalf) peek(n int, lend bool) ([]byte, error) {
	r.endLoan()
	// The peer may leave less than a MinPiece of the session window unused.
	if most := min(r.st.m.cfg.Window, r.st.m.cfg.SessionWindow-link.MinPiece); n > int(most) {
		return nil, fmt.Errorf("%w: %d bytes wanted, the windows allow %d", bufio.ErrBufferFull, n, most)
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
					r.lent = head
				} else if ok {
					head.busy, r.taking = head.inRing, 0
				}
			}
			r.mu.Unlock()
			return p[:len(p):len(p)], err
		}
		r.wait.BeginLocked()
		r.waiting = true
		bits, short := uint8(0), r.queue.head != nil
		if short {
			r.note(&r.short, true)
		}
		starves := short && r.eager
		if starves {
			bits = ctlShare
		}
		if (r.eager || n > int(r.st.m.cfg.Window)/2) && r.flow.Untold() > 0 {
			// The peer may have used up its window, or the minimum, before so much is
			// here, because it was not told yet of what was consumed last.
			bits |= ctlWindow
		}
		r.mu.Unlock()
		r.st.control(bits)
		if starves {
			r.st.m.lookAnyway() // gives back what others have read on arrival
		}
		if r.readable() == nil {
			r.st.m.pollLock.Wait(&r.wait) // ended by data, FIN, reset, deadline, close, peer death
		}
		if short {
			r.mu.Lock()
			r.note(&r.short, false)
			r.mu.Unlock()
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
	if p, ok = head.Unread(), true; len(p) < n {
		all := 0
		for k := head; k != nil; k = k.next {
			all += len(k.Unread())
		}
		if ok = all >= n; !ok && r.ended() == nil {
			return nil, false
		}
		n = min(n, all)
	}
	switch {
	case lend && head.inRing:
		// In the ring it would hold up what the peer sends, its windows too, for as long as
		// the application takes, and after a Close nobody can tell how long that is.
		n = max(n, len(p))
	case len(p) >= n:
		return p, ok
	}
	r.merge(n)
	if head = r.queue.head; head == nil {
		return nil, false
	}
	return head.Unread(), ok
}

// merge replaces the first chunks by one that holds at least n bytes. mu is held, and given up
// when that one is in the queue: a Close in between would not know of what is in neither.
func (r *receiveHalf) merge(n int) {
	m := NewChunk(n)
	var done chunkQueue
	for len(m.buf) < n && r.queue.head != nil {
		k := r.queue.head
		part := k.Unread()
		part = part[:min(len(part), n-len(m.buf))]
		m.buf = append(m.buf, part...)
		k.r += len(part)
		if k.r == len(k.buf) {
			k.busy = k.inRing // MoveOut must not take it meanwhile
			done.push(r.queue.pop())
		}
	}
	m.next = r.queue.head
	r.queue.head = m
	if m.next == nil {
		r.queue.tail = m
	}
	r.mu.Unlock()
	for done.head != nil {
		k := done.pop()
		if k.inRing {
			r.st.m.link.Free(k.token)
		}
		k.Recycle()
	}
	r.mu.Lock()
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
	r.mu.Unlock()
	if !queued {
		k.Recycle()
	}
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
	} else {
		r.keepHead()
	}
	r.tookAndUnlock(n)
}
