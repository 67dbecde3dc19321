package mux

import (
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"github.com/seed-b9b531af/ramjet/ring"
	"github.com/seed-b9b531af/ramjet/rnet/internal/wait"
)

// receiveHalf is the half of a stream that receives. The owner of the poll lock delivers to
// it; whoever reads takes what was delivered. mu guards what is below it.
type receiveHalf struct {
	st     *Stream
	callMu sync.Mutex // one Read at a time
	wait   wait.Waiter
	end    deadline

	mu      sync.Mutex
	queue   chunkQueue
	flow    ring.RecvWindow
	err     error  // after the queue: io.EOF or a reset
	dst     []byte // the buffer of the Read that waits; see takeBack
	dstLen  int    // bytes in it
	taking  int32  // how much the Read takes that copies without the lock, at most a window; see take
	counted int32  // unread bytes that count in the session window
	dstBits uint8  // control frames that are due for dst
	waiting bool   // a Read waits for data, or did: deliver alone clears it
	dropped bool   // closed: nobody will read any more
	eager   bool   // the peer wants to know of all that is read
	short   bool   // a Peek waits for more than there is
	lent    *Chunk // Peek gave out a piece of it: the first one, or dropped; changed under callMu too
}

func (r *receiveHalf) init(st *Stream) {
	r.st = st
	r.flow.Init(st.m.cfg.Window)
}

// deliver takes the payload of a DATA frame, as Frame does: with the receive lock
// held. An error means that the peer sent more than its window, or behind its FIN.
func (r *receiveHalf) deliver(payload []byte, counted bool) error {
	r.mu.Lock()
	if r.err == io.EOF {
		r.mu.Unlock()
		return fmt.Errorf("%w: stream %#x: data behind its end", ErrProtocol, r.st.id)
	}
	if err := r.flow.Arrive(len(payload)); err != nil {
		r.mu.Unlock()
		return fmt.Errorf("%w: stream %#x: %w", ErrProtocol, r.st.id, err)
	}
	taken := 0
	if r.dst != nil && r.queue.head == nil {
		taken = min(len(payload), len(r.dst)-r.dstLen)
	}
	if err := r.count(len(payload), len(payload)-taken, counted); err != nil {
		r.mu.Unlock()
		return err
	}
	if ended := r.st.shut.Load() == shutWrite|shutRead && len(payload) > 0; r.dropped || ended {
		r.flow.Consume(len(payload))
		bits := r.settle(false)
		told := r.dropped || r.err != nil
		r.mu.Unlock()
		r.st.control(bits)
		if !told {
			r.st.resetPeer()
		}
		return nil
	}
	if r.st.m.onLoop() {
		r.st.takeLoop(payload)
		r.mu.Unlock()
		return nil
	}
	if taken > 0 {
		copy(r.dst[r.dstLen:], payload[:taken])
		r.dstLen += taken
		r.dstBits |= r.consumed(taken)
		payload = payload[taken:]
	}
	switch {
	case len(payload) == 0:
	case len(payload) < keepMin:
		r.queue.appendCopy(payload)
	default:
		r.queue.push(keep(r, payload))
	}
	wake := r.waiting
	r.waiting = false
	r.mu.Unlock()
	if wake {
		r.st.m.pollLock.WakePolled(&r.wait)
	}
	return nil
}

// complete checks that all has arrived that the peer says, in its FIN, that it has sent. What was
// lost on the way would otherwise be the end of a shorter stream. The owner of the poll lock calls it.
func (r *receiveHalf) complete(sent uint64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if arrived := r.flow.Arrived(); arrived != sent {
		return fmt.Errorf("%w: stream %#x: %d bytes arrived, %d were sent", ErrProtocol, r.st.id, arrived, sent)
	}
	return nil
}

// count counts n bytes of a frame that has arrived in the session window; for kept of them
// no Read waited. mu is held.
func (r *receiveHalf) count(n, kept int, counted bool) error {
	m := r.st.m
	if !counted {
		read := r.flow.Granted() - uint64(m.cfg.Window)
		if end := r.flow.Arrived(); end > read+StreamMinimum {
			return fmt.Errorf("%w: stream %#x: %d bytes up to %d do not count, %d were read",
				ErrProtocol, r.st.id, n, end, read)
		}
		return nil
	}
	if err := m.share.arrive(n); err != nil {
		return err
	}
	m.share.freedAtOnce -= uint64(kept)
	r.counted += int32(kept)
	if r.eager {
		r.note(&r.eager, false)
	}
	return nil
}

// note sets eager or short, and counts the streams that have both. mu is held.
func (r *receiveHalf) note(which *bool, on bool) {
	was := r.eager && r.short
	*which = on
	switch is := r.eager && r.short; {
	case is && !was:
		r.st.m.share.starving.Add(1)
	case was && !is:
		r.st.m.share.starving.Add(-1)
	}
}

// blocked notes that the peer has data, and neither session window nor what is free.
func (r *receiveHalf) blocked() {
	r.mu.Lock()
	r.note(&r.eager, true)
	r.mu.Unlock()
	r.release(0)
}

// release moves the window over n bytes that a loop's sink has had, and tells the peer.
func (r *receiveHalf) release(n int) {
	r.mu.Lock()
	r.flow.Consume(n)
	bits := r.settle(r.err == nil && !r.st.closed.Load())
	r.mu.Unlock()
	r.st.control(bits)
}

// read is Read without the lock.
func (r *receiveHalf) read(p []byte) (int, error) {
	r.endLoan()
	if len(p) == 0 && !r.st.closed.Load() {
		return 0, nil
	}
	r.lookIfShut(1)
	for {
		if err := r.readable(); err != nil {
			return 0, err
		}
		r.mu.Lock()
		if r.queue.head != nil {
			n := r.take(p) // unlocks
			return n, nil
		}
		if err := r.ended(); err != nil {
			r.mu.Unlock()
			return 0, err
		}
		r.wait.BeginLocked()
		r.dst, r.waiting = p, true
		r.mu.Unlock()
		// ended by data, FIN, reset, deadline, close, peer death
		owns := r.readable() == nil && r.st.m.pollLock.Await(&r.wait)
		if n := r.takeBack(owns); n > 0 {
			return n, nil
		}
	}
}

// takeBack takes the buffer back that read has lent to deliver, and returns how many bytes are in it. It
// gives up the poll lock if the caller owns it: nobody else delivers, or ends the stream, as long as it does.
func (r *receiveHalf) takeBack(owns bool) int {
	if !owns {
		r.mu.Lock()
	}
	n, bits := r.dstLen, r.dstBits
	if r.err != nil {
		bits &^= ctlWindow // see settle
	}
	r.dst, r.dstLen, r.dstBits = nil, 0, 0
	if owns {
		r.st.m.pollLock.Leave()
	} else {
		r.mu.Unlock()
	}
	r.st.control(bits)
	return n
}

// lookIfShut takes in what has arrived where CloseRead was called and less than n bytes
// are queued: what reads then waits for nothing, and what lies in the ring comes before the
// end all the same.
func (r *receiveHalf) lookIfShut(n int) {
	if r.st.shut.Load()&shutRead == 0 || r.st.closed.Load() || r.st.ended() {
		return
	}
	r.mu.Lock()
	enough := r.flow.Buffered() >= n
	r.mu.Unlock()
	if !enough {
		r.st.m.lookAnyway() // comes before the io.EOF of CloseRead
	}
}

// readable tells why Read must not go on, nil if it may.
func (r *receiveHalf) readable() error {
	if r.st.closed.Load() {
		return net.ErrClosed
	}
	if r.end.expired() {
		return os.ErrDeadlineExceeded
	}
	return nil
}

// ended returns why nothing will follow what is queued, nil if something may. After Close
// the queue is empty because it was thrown away, not because the peer has ended: then it
// is net.ErrClosed. mu is held.
func (r *receiveHalf) ended() error {
	switch {
	case r.err == nil && r.st.shut.Load()&shutRead == 0:
		return nil
	case r.st.closed.Load():
		return net.ErrClosed
	case r.err == nil:
		return io.EOF
	}
	return r.err
}

// take copies queued data to p and returns how much. It is called with
// mu held and returns without it. A large chunk is copied without the
// lock, so that the owner of the poll lock can go on.
func (r *receiveHalf) take(p []byte) (n int) {
	for n < len(p) && r.queue.head != nil {
		k := r.queue.head
		src := k.Unread()
		if k.inRing {
			k.busy, r.taking = true, int32(min(len(p)-n, MaxWindow))
			r.mu.Unlock()
			m := copy(p[n:], src)
			r.mu.Lock()
			k.busy = false
			k.r += m
			n += m
		} else {
			m := copy(p[n:], src)
			k.r += m
			n += m
		}
		if k.r < len(k.buf) {
			r.keepHead()
			break
		}
		r.dropHead()
	}
	r.tookAndUnlock(n)
	return n
}

// keepHead keeps the first chunk, of which a part was read, where that holds up nobody and takes
// little memory. mu is held, and given up in between if the chunk leaves the ring.
func (r *receiveHalf) keepHead() {
	if k := r.queue.head; k.leave {
		r.merge(len(k.Unread()))
		return
	}
	r.queue.fitHead()
}

// tookAndUnlock accounts for n bytes taken off the queue, and does what Close
// left to the reader. mu is held and given up.
func (r *receiveHalf) tookAndUnlock(n int) {
	bits := r.consumed(n)
	dropped := r.dropped
	r.mu.Unlock()
	r.st.control(bits)
	if dropped {
		r.drop()
	}
}

// consumed accounts for n bytes that the application took and returns the control
// frames by which the peer should be told. mu is held.
func (r *receiveHalf) consumed(n int) (bits uint8) {
	if n == 0 {
		return 0
	}
	r.flow.Consume(n)
	return r.settle(r.err == nil)
}

// settle gives back to the session what the stream no longer holds, and returns the control
// frames by which the peer should be told; a WINDOW of the stream only if it is still open.
// mu is held.
func (r *receiveHalf) settle(open bool) (bits uint8) {
	if over := r.counted - int32(r.flow.Buffered()); over > 0 {
		r.counted -= over
		if r.st.m.share.free(uint64(over)) {
			bits = ctlShare
		}
	}
	if !open {
		return bits
	}
	if r.flow.UpdateDue() {
		bits |= ctlWindow
	}
	if untold := r.flow.Untold(); r.eager && untold > 0 && (untold >= StreamMinimum/2 || r.short || r.flow.Buffered() == 0) {
		bits |= ctlWindow | ctlShare
	}
	return bits
}

// takeUpdate returns the position of a WINDOW frame. The send lock is held.
func (r *receiveHalf) takeUpdate() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.flow.TakeUpdate()
}

// awaitData waits until something is queued. callMu is held.
func (r *receiveHalf) awaitData() error {
	r.lookIfShut(1)
	for {
		if err := r.readable(); err != nil {
			return err
		}
		r.mu.Lock()
		err := r.ended()
		if r.queue.head != nil || err != nil {
			if r.queue.head != nil {
				err = nil
			}
			r.mu.Unlock()
			return err
		}
		r.wait.BeginLocked()
		r.waiting = true
		r.mu.Unlock()
		if r.readable() == nil {
			r.st.m.pollLock.Wait(&r.wait) // ended by data, FIN, reset, deadline, close, peer death
		}
	}
}

// nextSize is the most that next copies at a time.
const nextSize = 64 << 10

// next waits for data and takes it off the queue: the first chunk as it is, if it
// lies in ordinary memory by itself, else a copy of what there is. The chunk is
// the caller's.
func (r *receiveHalf) next() (*Chunk, error) {
	r.callMu.Lock()
	defer r.callMu.Unlock()
	r.endLoan()
	for {
		if err := r.awaitData(); err != nil {
			return nil, err
		}
		r.mu.Lock()
		head := r.queue.head
		if head == nil { // closed meanwhile
			r.mu.Unlock()
			continue
		}
		if head.next == nil && !head.inRing {
			k := r.queue.pop()
			r.tookAndUnlock(len(k.Unread()))
			return k, nil
		}
		size := nextSize
		if head.next == nil {
			size = min(size, len(head.Unread()))
		}
		k := NewChunk(size)
		k.buf = k.buf[:r.take(k.buf[:size])] // unlocks
		if len(k.buf) > 0 {
			return k, nil
		}
		k.Recycle()
	}
}

// dropHead takes the first chunk off the queue, frees and recycles it. mu
// is held, and given up in between if the chunk lies in the ring.
func (r *receiveHalf) dropHead() {
	k := r.queue.pop()
	if k.inRing {
		token := k.token
		k.busy = true // MoveOut must not take it meanwhile
		r.mu.Unlock()
		r.st.m.link.Free(token)
		r.mu.Lock()
	}
	k.Recycle()
}

// drop throws away what was received and will be, for Close. It returns whether there was
// anything that no Read is about to return, and otherwise up to where the application has read: to
// the end of what has arrived.
func (r *receiveHalf) drop() (read uint64, unread bool) {
	r.mu.Lock()
	r.dropped = true
	read = r.flow.Arrived()
	var freed []ring.Token
	for k := r.queue.head; k != nil; k = r.queue.head {
		if k.busy {
			unread = unread || k.longerThan(int(r.taking))
			break // a reader is at it, and drops the rest when it is done
		}
		r.queue.pop()
		unread = true
		r.flow.Consume(len(k.Unread()))
		switch {
		case k == r.lent: // it is the borrower's
		case k.inRing:
			freed = append(freed, k.token)
			k.busy = true
		default:
			k.Recycle()
		}
	}
	bits := r.settle(false)
	r.mu.Unlock()
	for _, t := range freed {
		r.st.m.link.Free(t)
	}
	r.st.control(bits)
	return read, unread
}

// dropLater is drop for the goroutine that delivers, with the link's receive lock held.
func (r *receiveHalf) dropLater() {
	r.mu.Lock()
	r.dropped = true
	r.mu.Unlock()
	go r.drop()
}

// wake ends the wait of a Read.
func (r *receiveHalf) wake() {
	r.st.m.pollLock.Wake(&r.wait)
}
