package rnet

import "io"

// WriteTo writes everything that arrives to w, until the peer's last byte, for
// which it returns nil, or an error, and returns how many bytes w took. What w
// gets lies in ordinary memory: a piece of the ring would hold up the other
// streams of the session for as long as w takes it. While nothing arrives it
// holds no memory.
func (c *Conn) WriteTo(w io.Writer) (int64, error) {
	total, err := c.writeTo(w)
	if err != nil && err != io.EOF { // as package net has it
		err = c.opError("writeto", err)
	}
	return total, err
}

func (c *Conn) writeTo(w io.Writer) (int64, error) {
	var total int64
	for {
		k, err := c.next()
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, c.readError(err)
		}
		p := k.unread()
		n, err := w.Write(p)
		total += int64(n)
		if err == nil && n < len(p) {
			err = io.ErrShortWrite
		}
		k.recycle()
		if err != nil {
			return total, err
		}
	}
}

// A copy moves up to copySize bytes at a time. From a reader of which nobody can
// tell whether it would wait it takes first what fits into smallCopy.
const (
	copySize  = 64 << 10
	smallCopy = 4 << 10
)

// next waits for data and takes it off the queue: the first chunk as it is, if it
// lies in ordinary memory by itself, else a copy of what there is. The chunk is
// the caller's.
func (c *Conn) next() (*chunk, error) {
	c.readMu.Lock()
	defer c.readMu.Unlock()
	c.endLoan()
	for {
		if err := c.awaitData(); err != nil {
			return nil, err
		}
		c.recvMu.Lock()
		head := c.queue.head
		if head == nil { // closed meanwhile
			c.recvMu.Unlock()
			continue
		}
		if head.next == nil && !head.inRing {
			k := c.queue.pop()
			c.tookAndUnlock(len(k.unread()))
			return k, nil
		}
		size := copySize
		if head.next == nil {
			size = min(size, len(head.unread()))
		}
		k := newChunk(size)
		k.buf = k.buf[:c.takeQueue(k.buf[:size])] // unlocks
		if len(k.buf) > 0 {
			return k, nil
		}
		k.recycle()
	}
}

// awaitData waits until something is queued. readMu is held.
func (c *Conn) awaitData() error {
	for {
		if err := c.readable(); err != nil {
			return err
		}
		c.recvMu.Lock()
		err := c.recvEnded()
		if c.queue.head != nil || err != nil {
			if c.queue.head != nil {
				err = nil
			}
			c.recvMu.Unlock()
			return err
		}
		c.recvWait.Begin()
		c.waiting = true
		c.recvMu.Unlock()
		if c.readable() == nil {
			c.s.pollLock.Wait(&c.recvWait) // ended by data, FIN, reset, deadline, close, peer death
		}
	}
}

// ReadFrom reads from r until io.EOF, for which it returns nil, or an error,
// and writes what it read. It returns how many bytes it has written. While r has
// nothing it holds no memory if r is a stream socket of package net or a Conn, 4
// KiB if it is something else.
func (c *Conn) ReadFrom(r io.Reader) (int64, error) {
	total, err := c.readFrom(r)
	if err != nil && err != io.EOF { // as package net has it
		err = c.opError("readfrom", err)
	}
	return total, err
}

func (c *Conn) readFrom(r io.Reader) (int64, error) {
	if from, ok := r.(*Conn); ok {
		return from.writeTo(c)
	}
	read := pieces(r)
	var total int64
	for {
		k, err := read()
		var werr error
		if len(k.buf) > 0 {
			var n int
			n, werr = c.Write(k.buf)
			total += int64(n)
		}
		k.recycle()
		if werr != nil {
			return total, werr
		}
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}

// pieces returns a function that returns what r has next, in a chunk that may be
// empty and is the caller's, and the error of r.
func pieces(r io.Reader) func() (*chunk, error) {
	if s := socketOf(r); s != nil {
		return s.next
	}
	return (&eagerReader{r: r, size: smallCopy}).next
}

// eagerReader reads into memory that it must have before it knows whether it
// waits: little, until there is more than fits.
type eagerReader struct {
	r    io.Reader
	size int
}

func (e *eagerReader) next() (*chunk, error) {
	k := newChunk(e.size)
	n, err := e.r.Read(k.buf[:e.size])
	k.buf = k.buf[:n]
	if n == e.size {
		e.size = copySize
	} else {
		e.size = smallCopy
	}
	return k, err
}
