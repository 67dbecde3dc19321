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
	p, err := c.Peek(n)
	if err == nil {
		c.take(len(p))
	}
	return p, err
}

// Peek is Next without taking them.
func (c *conn) Peek(n int) ([]byte, error) {
	all := c.InboundBuffered()
	if n > all {
		return nil, io.ErrShortBuffer
	}
	if n <= 0 {
		n = all
	}
	if c.inbound.IsEmpty() {
		return c.fresh[:n:n], nil
	}
	// A copy: what comes next may move what lies in the buffer.
	buf := byteslice.Get(n)
	c.lent = append(c.lent, buf)
	head, tail := c.inbound.Peek(n)
	m := copy(buf, head)
	m += copy(buf[m:], tail)
	copy(buf[m:], c.fresh)
	return buf, nil
}

// Discard takes n bytes, all if n is not positive or there are fewer.
func (c *conn) Discard(n int) (int, error) {
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

// takeBack recycles the copies that a callback was given.
func (c *conn) takeBack() {
	for i, buf := range c.lent {
		byteslice.Put(buf)
		c.lent[i] = nil
	}
	c.lent = c.lent[:0]
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
