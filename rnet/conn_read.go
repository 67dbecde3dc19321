package rnet

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"

	"github.com/seed-b9b531af/ramjet/ring"
)

// deliver takes the payload of a DATA frame. The leader calls it, with rxMu
// held. An error means that the peer sent more than its window.
func (c *Conn) deliver(payload []byte) error {
	c.recvMu.Lock()
	if err := c.flow.Arrive(len(payload)); err != nil {
		c.recvMu.Unlock()
		return fmt.Errorf("%w: stream %#x: %w", errProtocol, c.id, err)
	}
	if c.dropped {
		c.flow.Consume(len(payload))
		update := c.flow.UpdateDue() && !c.closed.Load()
		c.recvMu.Unlock()
		if update { // after CloseRead the peer may write without end
			c.s.control(c, ctlWindow)
		}
		return nil
	}
	if c.s.onLoop() {
		c.takeLoop(payload)
		c.recvMu.Unlock()
		return nil
	}
	if c.dst != nil && c.queue.head == nil {
		n := copy(c.dst[c.dstLen:], payload)
		c.dstLen += n
		payload = payload[n:]
	}
	switch {
	case len(payload) == 0:
	case len(payload) < keepMin:
		c.queue.appendCopy(payload)
	default:
		c.queue.push(c.s.keep(c, payload))
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
		err = c.opError("read", err)
	}
	return n, err
}

func (c *Conn) read(p []byte) (int, error) {
	if len(p) == 0 && !c.closed.Load() {
		return 0, nil
	}
	for {
		if err := c.readable(); err != nil {
			return 0, err
		}
		c.recvMu.Lock()
		if c.queue.head != nil {
			c.takeBack()
			n := c.takeQueue(p) // unlocks
			return n, nil
		}
		if err := c.recvEnded(); err != nil {
			c.recvMu.Unlock()
			return 0, err
		}
		c.recvWait.begin()
		c.dst, c.dstLen, c.waiting = p, 0, true
		c.recvMu.Unlock()
		if c.readable() == nil {
			c.s.wait(&c.recvWait) // ended by data, FIN, reset, deadline, close, peer death
		}
		c.recvMu.Lock()
		n := c.dstLen
		c.dst, c.dstLen, c.waiting = nil, 0, false
		update := c.consumed(n)
		c.recvMu.Unlock()
		if update {
			c.s.control(c, ctlWindow)
		}
		if n > 0 {
			return n, nil
		}
	}
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

// recvEnded tells why nothing will come behind what is queued, nil if something
// may. Close has thrown the queue away, and who finds it empty then has not come
// to the end. recvMu is held.
func (c *Conn) recvEnded() error {
	if c.recvErr != nil && c.closed.Load() {
		return net.ErrClosed
	}
	return c.recvErr
}

// consumed accounts for n bytes that the application took and reports whether
// the peer's window should be moved. recvMu is held.
func (c *Conn) consumed(n int) bool {
	if n == 0 {
		return false
	}
	c.flow.Consume(n)
	return c.flow.UpdateDue() && c.recvErr == nil
}

// takeQueue copies queued data to p and returns how much. It is called with
// recvMu held and returns without it. A large chunk is copied without the
// lock, so that the leader can go on.
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
	update := c.consumed(n)
	dropped := c.dropped
	c.recvMu.Unlock()
	if update {
		c.s.control(c, ctlWindow)
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
		c.s.unkeep(token)
		c.recvMu.Lock()
	}
	k.recycle()
}

// dropQueue throws away what was received and will be. After CloseRead it
// counts as consumed, so that the peer's window does not stay shut.
func (c *Conn) dropQueue() {
	c.recvMu.Lock()
	c.dropped = true
	var freed []ring.Token
	for k := c.queue.head; k != nil; k = c.queue.head {
		if k.busy && !c.peeked {
			break // a reader is at it, and drops the rest when it is done
		}
		c.queue.pop()
		c.flow.Consume(len(k.unread()))
		if k.inRing {
			freed = append(freed, k.token)
			k.busy = true
		} else {
			k.recycle()
		}
	}
	update := c.flow.UpdateDue() && !c.closed.Load()
	c.recvMu.Unlock()
	for _, t := range freed {
		c.s.unkeep(t)
	}
	if update {
		c.s.control(c, ctlWindow)
	}
}

// dropLater is dropQueue for the leader, who holds rxMu.
func (c *Conn) dropLater() {
	c.recvMu.Lock()
	c.dropped = true
	c.recvMu.Unlock()
	go c.dropQueue()
}

// WriteTo writes everything that arrives to w, until the peer's last byte, for
// which it returns nil, or an error, and returns how many bytes w took. What w
// gets lies in ordinary memory: a piece of the ring would hold up the other
// streams of the session for as long as w takes it.
func (c *Conn) WriteTo(w io.Writer) (int64, error) {
	buf := copyBuffers.Get().(*[]byte)
	defer copyBuffers.Put(buf)
	var total int64
	for {
		n, err := c.Read(*buf)
		if n > 0 {
			m, werr := w.Write((*buf)[:n])
			total += int64(m)
			if werr == nil && m < n {
				werr = io.ErrShortWrite
			}
			if werr != nil {
				return total, werr
			}
		}
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}

// Peek returns at least the next n bytes without taking them, and all that
// lies together with them; it waits until they are there. The bytes lie where
// they arrived, if that is possible, and are valid until the next call of
// Read, Discard, Peek, WriteTo or Close. With n greater than the stream's
// window (Limits.Window) it fails with an error that wraps
// bufio.ErrBufferFull; if the peer ends before, it returns what there is, and
// io.EOF. An n below 1 counts as 1.
//
// They lie where a peer that breaks the protocol could change them meanwhile:
// copy what is checked first and used afterwards.
//
// A piece that lies in the receive ring holds up the ring, and with it in the
// end the other connections of the session: discard it soon, or give the
// connection a session of its own (Dialer.Dedicated).
func (c *Conn) Peek(n int) ([]byte, error) {
	c.readMu.Lock()
	defer c.readMu.Unlock()
	p, err := c.peek(max(n, 1), true)
	if err != nil && err != io.EOF {
		err = c.opError("read", err)
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
				err = c.opError("read", err)
			}
			return done, err
		}
		m := min(len(p), n-done)
		c.discard(m)
		done += m
	}
	return done, nil
}

// peek is Peek without the lock. The chunk that it returned a piece of is
// busy: it stays where it is until discard or the next call, or, if it is lent
// to the application, until Close.
func (c *Conn) peek(n int, lend bool) ([]byte, error) {
	c.recvMu.Lock()
	c.takeBack()
	c.recvMu.Unlock()
	if n > int(c.s.cfg.window) {
		return nil, fmt.Errorf("%w: %d bytes wanted, the window is %d", bufio.ErrBufferFull, n, c.s.cfg.window)
	}
	for {
		if err := c.readable(); err != nil {
			return nil, err
		}
		c.recvMu.Lock()
		if p, ok := c.gather(n); ok || c.recvErr != nil {
			err := c.recvEnded()
			if ok {
				err = nil
			}
			if head := c.queue.head; len(p) > 0 {
				head.busy = head.inRing
				c.peeked = lend
			}
			c.recvMu.Unlock()
			return p[:len(p):len(p)], err
		}
		c.recvWait.begin()
		c.waiting = true
		c.recvMu.Unlock()
		if n > int(c.s.cfg.window)/2 {
			// The peer may have used up its window before so much is here,
			// because it was not told yet of what was consumed last.
			c.s.control(c, ctlWindow)
		}
		if c.readable() == nil {
			c.s.wait(&c.recvWait) // ended by data, FIN, reset, deadline, close, peer death
		}
	}
}

// gather makes the first n bytes of the queue lie together. recvMu is held.
func (c *Conn) gather(n int) (p []byte, ok bool) {
	head := c.queue.head
	if head == nil {
		return nil, false
	}
	if p = head.unread(); len(p) < n {
		all := 0
		for k := head; k != nil; k = k.next {
			all += len(k.unread())
		}
		if all < n && c.recvErr == nil {
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

// takeBack ends the loan of a piece of the first chunk. recvMu is held.
func (c *Conn) takeBack() {
	if c.peeked && c.queue.head != nil {
		c.queue.head.busy = false
	}
	c.peeked = false
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
		m.recycle()
		return
	}
	m.next = c.queue.head
	c.queue.head = m
	if m.next == nil {
		c.queue.tail = m
	}
}

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
