package rnet

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"syscall"

	"github.com/seed-b9b531af/ramjet/ring"
)

// deliver takes the payload of a DATA frame, as Frame does: with the receive lock
// held. An error means that the peer sent more than its window.
func (c *Conn) deliver(payload []byte, counted bool) error {
	c.recvMu.Lock()
	if err := c.flow.Arrive(len(payload)); err != nil {
		c.recvMu.Unlock()
		return fmt.Errorf("%w: stream %#x: %w", errProtocol, c.id, err)
	}
	taken := 0
	if c.dst != nil && c.queue.head == nil {
		taken = min(len(payload), len(c.dst)-c.dstLen)
	}
	if err := c.s.arrive(c, len(payload), len(payload)-taken, counted); err != nil {
		c.recvMu.Unlock()
		return err
	}
	if c.dropped {
		c.flow.Consume(len(payload))
		bits := c.settle(false)
		c.recvMu.Unlock()
		if bits != 0 {
			c.s.control(c, bits)
		}
		return nil
	}
	if c.shut.Load() == shutWrite|shutRead && len(payload) > 0 {
		c.flow.Consume(len(payload))
		bits := c.settle(false)
		told := c.recvErr != nil
		c.recvMu.Unlock()
		if bits != 0 {
			c.s.control(c, bits)
		}
		if !told {
			c.resetPeer()
		}
		return nil
	}
	if c.s.onLoop() {
		c.takeLoop(payload)
		c.recvMu.Unlock()
		return nil
	}
	if taken > 0 {
		copy(c.dst[c.dstLen:], payload[:taken])
		c.dstLen += taken
		payload = payload[taken:]
	}
	switch {
	case len(payload) == 0:
	case len(payload) < keepMin:
		c.queue.appendCopy(payload)
	default:
		c.queue.push(keep(c, payload))
	}
	wake := c.waiting
	c.waiting = false
	c.recvMu.Unlock()
	if wake {
		c.wakeReader()
	}
	return nil
}

// Read reads up to len(p) bytes. It waits until there is at least one, or the
// peer has ended its half: then it returns io.EOF. Of several Reads at once
// one waits, the others wait for it.
func (c *Conn) Read(p []byte) (int, error) {
	c.readMu.Lock()
	n, err := c.read(p)
	c.readMu.Unlock()
	if err != nil && err != io.EOF {
		err = c.readError(err)
	}
	return n, err
}

func (c *Conn) read(p []byte) (int, error) {
	c.endLoan()
	if len(p) == 0 && !c.closed.Load() {
		return 0, nil
	}
	for {
		if err := c.readable(); err != nil {
			return 0, err
		}
		c.recvMu.Lock()
		if c.queue.head != nil {
			n := c.takeQueue(p) // unlocks
			return n, nil
		}
		if err := c.recvEnded(); err != nil {
			c.recvMu.Unlock()
			return 0, err
		}
		c.recvWait.Begin()
		c.dst, c.dstLen, c.waiting = p, 0, true
		c.recvMu.Unlock()
		if c.readable() == nil {
			c.s.pollLock.Wait(&c.recvWait) // ended by data, FIN, reset, deadline, close, peer death
		}
		c.recvMu.Lock()
		n := c.dstLen
		c.dst, c.dstLen, c.waiting = nil, 0, false
		bits := c.consumed(n)
		c.recvMu.Unlock()
		if bits != 0 {
			c.s.control(c, bits)
		}
		if n > 0 {
			return n, nil
		}
	}
}

// readError is opError for reads. What a reset was told by is told once only to
// Writes: see sendEnded.
func (c *Conn) readError(err error) error {
	if err == syscall.ECONNRESET {
		c.told.Store(true)
	}
	return c.opError("read", err)
}

// readable tells why Read must not go on, nil if it may.
func (c *Conn) readable() error {
	if c.closed.Load() {
		return net.ErrClosed
	}
	if c.recvEnd.expired.Load() {
		return os.ErrDeadlineExceeded
	}
	return nil
}

// recvEnded tells why there is nothing to wait for behind what is queued, nil if
// there is. Close has thrown the queue away, and who finds it empty then has not
// come to the end. recvMu is held.
func (c *Conn) recvEnded() error {
	switch {
	case c.recvErr == nil && c.shut.Load()&shutRead == 0:
		return nil
	case c.closed.Load():
		return net.ErrClosed
	case c.recvErr == nil:
		return io.EOF
	}
	return c.recvErr
}

// consumed accounts for n bytes that the application took and returns the control
// frames by which the peer should be told. recvMu is held.
func (c *Conn) consumed(n int) (bits uint8) {
	if n == 0 {
		return 0
	}
	c.flow.Consume(n)
	return c.settle(c.recvErr == nil)
}

// takeQueue copies queued data to p and returns how much. It is called with
// recvMu held and returns without it. A large chunk is copied without the
// lock, so that the owner of the poll lock can go on.
func (c *Conn) takeQueue(p []byte) (n int) {
	for n < len(p) && c.queue.head != nil {
		k := c.queue.head
		src := k.unread()
		if k.inRing {
			k.busy = true
			c.recvMu.Unlock()
			m := copy(p[n:], src)
			c.recvMu.Lock()
			k.busy = false
			k.r += m
			n += m
		} else {
			m := copy(p[n:], src)
			k.r += m
			n += m
		}
		if k.r < len(k.buf) {
			break
		}
		c.dropHead()
	}
	c.tookAndUnlock(n)
	return n
}

// tookAndUnlock accounts for n bytes taken off the queue, and does what Close
// left to the reader. recvMu is held and given up.
func (c *Conn) tookAndUnlock(n int) {
	bits := c.consumed(n)
	dropped := c.dropped
	c.recvMu.Unlock()
	if bits != 0 {
		c.s.control(c, bits)
	}
	if dropped {
		c.dropQueue()
	}
}

// dropHead takes the first chunk off the queue, frees and recycles it. recvMu
// is held, and given up in between if the chunk lies in the ring.
func (c *Conn) dropHead() {
	k := c.queue.pop()
	if k.inRing {
		token := k.token
		k.busy = true // spill must not free it as well
		c.recvMu.Unlock()
		c.s.link.Free(token)
		c.recvMu.Lock()
	}
	k.recycle()
}

// dropQueue throws away what was received and will be, for Close, and reports
// whether there was anything.
func (c *Conn) dropQueue() (unread bool) {
	c.recvMu.Lock()
	c.dropped = true
	var freed []ring.Token
	var lent loan
	for k := c.queue.head; k != nil; k = c.queue.head {
		if k.busy && k != c.lent {
			break // a reader is at it, and drops the rest when it is done
		}
		c.queue.pop()
		unread = true
		c.flow.Consume(len(k.unread()))
		if k == c.lent {
			if k.inRing { // who borrowed it may never make another call
				lent = loan{c.s, k.token}
				c.forsaken = runtime.AddCleanup(c, loan.end, lent)
			}
		} else if k.inRing {
			freed = append(freed, k.token)
			k.busy = true
		} else {
			k.recycle()
		}
	}
	bits := c.settle(false)
	c.recvMu.Unlock()
	for _, t := range freed {
		c.s.link.Free(t)
	}
	if lent.s != nil {
		c.s.link.Pin(lent.token)
	}
	if bits != 0 {
		c.s.control(c, bits)
	}
	return unread
}

// dropLater is dropQueue for who delivers, with the receive lock held.
func (c *Conn) dropLater() {
	c.recvMu.Lock()
	c.dropped = true
	c.recvMu.Unlock()
	go c.dropQueue()
}

// Peek returns at least the next n bytes without taking them, and all that
// lies together with them; it waits until they are there. The bytes lie where
// they arrived, if the connection was dialed with a session of its own
// (Dialer.Dedicated), else in ordinary memory. With n greater than the stream's
// window (Limits.Window) it fails with an error that wraps bufio.ErrBufferFull;
// if the peer ends before, it returns what there is, and io.EOF. An n below 1
// counts as 1.
//
// The bytes are valid until the next call of Read, Discard, Peek or WriteTo,
// whatever happens meanwhile: a Close, by any goroutine, and the end of the
// session leave them where they are. After a Close they are freed by such a
// call, or when nothing refers to the connection any more, so keep the
// connection as long as the bytes.
//
// On a session of its own they lie where a peer that breaks the protocol could
// change them meanwhile: copy what is checked first and used afterwards. There
// a piece also holds up what the peer may send: discard it soon.
func (c *Conn) Peek(n int) ([]byte, error) {
	c.readMu.Lock()
	defer c.readMu.Unlock()
	p, err := c.peek(max(n, 1), true)
	if err != nil && err != io.EOF {
		err = c.readError(err)
	}
	return p, err
}

// Discard takes n bytes off the stream and waits until so many have arrived. If
// it takes fewer, it returns how many, and why: io.EOF if the peer has ended
// before. It may be more than Peek returned.
func (c *Conn) Discard(n int) (int, error) {
	c.readMu.Lock()
	defer c.readMu.Unlock()
	done := 0
	for done < n {
		p, err := c.peek(1, false)
		if err != nil {
			if err != io.EOF {
				err = c.readError(err)
			}
			return done, err
		}
		m := min(len(p), n-done)
		c.discard(m)
		done += m
	}
	return done, nil
}

// peek is Peek without the lock. If what it returns is lent to the application,
// the chunk stays until the next call. Otherwise it is busy: it stays where it is
// until discard.
func (c *Conn) peek(n int, lend bool) ([]byte, error) {
	c.endLoan()
	if n > int(c.s.cfg.window) {
		return nil, fmt.Errorf("%w: %d bytes wanted, the window is %d", bufio.ErrBufferFull, n, c.s.cfg.window)
	}
	for {
		if err := c.readable(); err != nil {
			return nil, err
		}
		c.recvMu.Lock()
		p, ok := c.gather(n, lend)
		err := c.recvEnded()
		if ok {
			err = nil
		}
		if ok || err != nil {
			if head := c.queue.head; len(p) > 0 {
				head.busy = head.inRing
				if lend {
					c.lent = head
				}
			}
			c.recvMu.Unlock()
			return p[:len(p):len(p)], err
		}
		c.recvWait.Begin()
		c.waiting = true
		c.recvMu.Unlock()
		if n > int(c.s.cfg.window)/2 {
			// The peer may have used up its window before so much is here,
			// because it was not told yet of what was consumed last.
			c.s.control(c, ctlWindow)
		}
		if c.readable() == nil {
			c.s.pollLock.Wait(&c.recvWait) // ended by data, FIN, reset, deadline, close, peer death
		}
	}
}

// gather makes the first n bytes of the queue lie together, and where they can
// be lent. recvMu is held.
func (c *Conn) gather(n int, lend bool) (p []byte, ok bool) {
	head := c.queue.head
	if head == nil {
		return nil, false
	}
	if p = head.unread(); lend && head.inRing && !c.s.dedicated && len(p) >= n {
		// In the ring it would hold up others, for as long as the application
		// takes, and after a Close nobody can tell how long that is.
		n = len(p)
		c.merge(n)
		if head = c.queue.head; head == nil {
			return nil, false
		}
		p = head.unread()
	} else if len(p) < n {
		all := 0
		for k := head; k != nil; k = k.next {
			all += len(k.unread())
		}
		if all < n && c.recvEnded() == nil {
			return nil, false
		}
		if head.next != nil {
			c.merge(min(n, all))
			if head = c.queue.head; head == nil {
				return nil, false
			}
			p = head.unread()
		}
	}
	return p, len(p) >= n
}

// endLoan takes back what Peek gave out. readMu is held.
func (c *Conn) endLoan() {
	k := c.lent
	if k == nil {
		return
	}
	c.recvMu.Lock()
	c.lent = nil
	queued := k == c.queue.head
	if queued {
		k.busy = false
	}
	c.recvMu.Unlock()
	if queued {
		return
	}
	if k.inRing {
		c.forsaken.Stop()
		c.s.link.Free(k.token)
	}
	k.recycle()
}

// merge replaces the first chunks by one that holds at least n bytes. recvMu
// is held, and given up in between: the queue may be dropped meanwhile.
func (c *Conn) merge(n int) {
	m := newChunk(n)
	for len(m.buf) < n && c.queue.head != nil {
		k := c.queue.head
		part := k.unread()
		part = part[:min(len(part), n-len(m.buf))]
		m.buf = append(m.buf, part...)
		k.r += len(part)
		if k.r == len(k.buf) {
			c.dropHead()
		}
	}
	if c.dropped {
		c.flow.Consume(len(m.buf))
		c.settle(false)
		m.recycle()
		return
	}
	m.next = c.queue.head
	c.queue.head = m
	if m.next == nil {
		c.queue.tail = m
	}
}

// loan is a piece of the ring that Peek gave out of a stream that was closed
// before it was given back.
type loan struct {
	s     *session
	token ring.Token
}

// end frees the piece when nothing refers to the stream any more. It is a
// cleanup, and must not wait.
func (l loan) end() { go l.s.link.Free(l.token) }

// discard takes n bytes off the head of the queue, which has so many.
func (c *Conn) discard(n int) {
	c.recvMu.Lock()
	if c.queue.head == nil { // closed meanwhile
		c.recvMu.Unlock()
		return
	}
	k := c.queue.head
	k.busy = false
	k.r += n
	if k.r == len(k.buf) {
		c.dropHead()
	}
	c.tookAndUnlock(n)
}
