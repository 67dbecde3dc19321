package rgnet

import (
	"io"

	"github.com/panjf2000/gnet/v2/pkg/pool/byteslice"
)

// InboundBuffered returns how many bytes there are to read.
func (c *conn) InboundBuffered() int { return c.inbound.Buffered() + len(c.fresh) }

// Read reads what there is; without anything it fails with io.ErrShortBuffer.
func (c *conn) Read(p []byte) (n int, err error) {
	if !c.inbound.IsEmpty() {
		n, _ = c.inbound.Read(p)
	}
	m := copy(p[n:], c.fresh)
	c.fresh = c.fresh[m:]
	if n += m; n == 0 && len(p) > 0 {
		return 0, io.ErrShortBuffer
	}
	return n, nil
}

// Next takes n bytes, all if n is not positive. They are valid until the handler
// returns.
func (c *conn) Next(n int) ([]byte, error) {
	n, err := c.available(n)
	if err != nil {
		return nil, err
	}
	p := c.fresh
	if !c.inbound.IsEmpty() {
		// A copy: what is taken from the buffer may be overwritten.
		p = c.copyOf(n)
		c.lent = append(c.lent, p)
	}
	c.take(n)
	return p[:n:n], nil
}

// Peek is Next without taking them. What it returns is valid until any of it is
// taken, or the handler returns.
func (c *conn) Peek(n int) ([]byte, error) {
	n, err := c.available(n)
	if err != nil {
		return nil, err
	}
	if c.inbound.IsEmpty() {
		return c.fresh[:n:n], nil
	}
	if n > c.inbound.Buffered() && !c.peeked {
		// What the handler does not take goes there in the end. It may move
		// what lies there, which nobody has been given.
		c.inbound.Write(c.fresh)
		c.fresh = nil
	}
	if head, _ := c.inbound.Peek(n); len(head) == n {
		c.peeked = true
		return head[:n:n], nil
	}
	// One that was given out before is the handler's to keep.
	c.peek = c.copyOf(n)
	return c.peek, nil
}

// available returns how many bytes a request for n gets.
func (c *conn) available(n int) (int, error) {
	all := c.InboundBuffered()
	if n > all {
		return 0, io.ErrShortBuffer
	}
	if n <= 0 {
		n = all
	}
	return n, nil
}

// copyOf returns a copy of the first n bytes.
func (c *conn) copyOf(n int) []byte {
	buf := byteslice.Get(n)
	head, tail := c.inbound.Peek(n)
	m := copy(buf, head)
	m += copy(buf[m:], tail)
	copy(buf[m:], c.fresh)
	return buf
}

// Discard takes n bytes, all if n is not positive or there are fewer.
func (c *conn) Discard(n int) (int, error) {
	c.endPeek()
	if all := c.InboundBuffered(); n <= 0 || n > all {
		n = all
	}
	c.take(n)
	return n, nil
}

// take takes n bytes, of which there are so many.
func (c *conn) take(n int) {
	if !c.inbound.IsEmpty() {
		m, _ := c.inbound.Discard(n)
		n -= m
	}
	c.fresh = c.fresh[n:]
}

// endPeek ends the time for which what Peek gave out may be used.
func (c *conn) endPeek() {
	c.peeked = false
	if c.peek != nil {
		byteslice.Put(c.peek)
		c.peek = nil
	}
}

// keptLent is for how many copies a connection keeps the list.
const keptLent = 16

// takeBack recycles the copies that a callback was given by Next.
func (c *conn) takeBack() {
	for _, buf := range c.lent {
		byteslice.Put(buf)
	}
	clear(c.lent)
	c.lent = c.lent[:0]
	if cap(c.lent) > keptLent {
		c.lent = nil
	}
}

// WriteTo writes all there is to w.
func (c *conn) WriteTo(w io.Writer) (n int64, err error) {
	if !c.inbound.IsEmpty() {
		if n, err = c.inbound.WriteTo(w); err != nil {
			return n, err
		}
	}
	if len(c.fresh) == 0 {
		return n, nil
	}
	m, err := w.Write(c.fresh)
	c.fresh = c.fresh[m:]
	return n + int64(m), err
}
