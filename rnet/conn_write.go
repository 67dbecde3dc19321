package rnet

import (
	"net"
	"os"
	"syscall"

	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
)

// Write writes p. It returns when all bytes have been copied out of p, which
// is not yet when the peer has them. It blocks while the peer's window or its
// ring is full. With an error it returns how many bytes of p are on their way.
// Of several Writes at once each is sent as a whole, one after the other.
func (c *Conn) Write(p []byte) (int, error) {
	c.writeMu.Lock()
	n, err := c.write(p, nil)
	c.writeMu.Unlock()
	if err != nil {
		err = c.opError("write", err)
	}
	return n, err
}

// write is Write without the lock. If out is not nil, p is the start of it, and
// is sent from where it lies.
func (c *Conn) write(p []byte, out *link.Buffer) (n int, err error) {
	queued := false
	for {
		if err := c.writable(); err != nil {
			if queued { // woken in its turn: the next may go
				c.s.leaveLine(c)
			}
			return n, err
		}
		if len(p) == 0 {
			return 0, c.sendable()
		}
		if err := c.sendPiece(p, out, &n, &queued); err != nil {
			return n, err
		}
		if n == len(p) {
			return n, nil
		}
	}
}

// sendPiece sends one frame of p[*n:], or waits once for what is missing.
func (c *Conn) sendPiece(p []byte, out *link.Buffer, n *int, queued *bool) error {
	m, result, err := c.s.send(c, p[*n:], out, *n)
	switch result {
	case sendOK:
		*n += m
		*queued = false
		return nil
	case sendFailed:
		return c.reason(err)
	}
	c.sendWait.Begin()
	if c.mayWait(result) {
		c.s.pollLock.Wait(&c.sendWait) // ended by window, credit, deadline, close, reset, peer death
	}
	*queued = result == sendRoom || result == sendShare
	return nil
}

// sendable tells why nothing can be sent any more, nil if something can. A Write
// of nothing asks no more than that.
func (c *Conn) sendable() error {
	c.s.txMu.Lock()
	defer c.s.txMu.Unlock()
	return c.reason(c.sendEnded())
}

// sendEnded is sendable for who holds txMu. A reset is told of once, by a Write or
// a Read: after that Writes fail with EPIPE.
func (c *Conn) sendEnded() error {
	if c.sendErr == syscall.ECONNRESET && c.told.Swap(true) {
		return syscall.EPIPE
	}
	return c.sendErr
}

// sendToNobody takes what the window allows of p, after the peer has closed, and
// throws it away. The peer of a TCP connection would not have it either, and could
// say so only then: programs count on it that the first Write after the end does
// not fail. txMu is held.
func (c *Conn) sendToNobody(p []byte) (n int, err error) {
	c.sendErr, c.broken = syscall.EPIPE, true
	if n = min(len(p), c.window.Avail()); n == 0 {
		return 0, syscall.EPIPE
	}
	return n, nil
}

// reason prefers what the application did to how the session saw it.
func (c *Conn) reason(err error) error {
	if err != nil && c.closed.Load() {
		return net.ErrClosed
	}
	return err
}

// mayWait looks once more, after begin, at what would have ended the wait.
func (c *Conn) mayWait(result sendResult) bool {
	if c.writable() != nil {
		return false
	}
	c.s.txMu.Lock()
	defer c.s.txMu.Unlock()
	if c.sendErr != nil || c.peerGone || c.s.link.Stopped() {
		return false
	}
	if result == sendWindow {
		return c.window.Granted() >= c.granted.Load()
	}
	if result == sendShare {
		return c.links[shareLink].in && c.window.Granted() >= c.granted.Load()
	}
	return c.links[txLink].in // popped already: woken before begin
}

// writable tells why Write must not go on, nil if it may.
func (c *Conn) writable() error {
	if c.closed.Load() {
		return net.ErrClosed
	}
	if c.sendEnd.expired.Load() {
		return os.ErrDeadlineExceeded
	}
	return nil
}
