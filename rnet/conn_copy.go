package rnet

import (
	"cmp"
	"errors"
	"io"
	"net"
	"os"

	"github.com/seed-b9b531af/ramjet/rnet/internal/mux"
)

// WriteTo writes everything that arrives to w, until the peer's last byte, for
// which it returns nil, or an error, and returns how many bytes w took. What w
// gets lies in ordinary memory: a piece of the ring would hold up the other
// streams of the session for as long as w takes it. While nothing arrives it
// holds no memory. A w that has a method ReadFrom of its own reads by that, as with package net.
func (c *Conn) WriteTo(w io.Writer) (int64, error) {
	total, err := c.writeTo(w)
	if err != nil && err != io.EOF { // as package net has it
		err = c.opError("writeto", err)
	}
	return total, err
}

func (c *Conn) writeTo(w io.Writer) (int64, error) {
	if to, ok := w.(io.ReaderFrom); ok && !justWrites(w) {
		return to.ReadFrom(withoutWriteTo{c})
	}
	var total int64
	for {
		k, err := c.st.Next()
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, c.opError("read", err)
		}
		p := k.Unread()
		n, err := w.Write(p)
		if n < 0 || n > len(p) {
			n, err = 0, cmp.Or(err, errInvalidWrite)
		}
		total += int64(n)
		if err == nil && n < len(p) {
			err = io.ErrShortWrite
		}
		k.Recycle()
		if err != nil {
			return total, err
		}
	}
}

// errInvalidWrite is what io.Copy says of a Write that returns more than it was given.
var errInvalidWrite = errors.New("invalid write result")

// justWrites reports whether ReadFrom of w does no more with what it reads than Write, and
// needs memory for it. That of a bufio.Writer passes on at once what Write keeps until Flush.
func justWrites(w io.Writer) bool {
	switch w.(type) {
	case *Conn, *net.TCPConn, *os.File:
		return true
	}
	return w == io.Discard
}

// withoutWriteTo is a Conn without its WriteTo, which would call ReadFrom again.
type withoutWriteTo struct{ c *Conn }

func (r withoutWriteTo) Read(p []byte) (int, error) { return r.c.Read(p) }

// A copy moves up to copySize bytes at a time. From a reader of which nobody can
// tell whether it would wait it takes first what fits into smallCopy.
const (
	copySize  = 64 << 10
	smallCopy = 4 << 10
)

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
	switch from := r.(type) {
	case *Conn:
		return from.writeTo(c)
	case withoutWriteTo:
		return from.c.writeTo(c)
	}
	read := pieces(r)
	var total int64
	for {
		k, err := read()
		var werr error
		if len(k.Unread()) > 0 {
			var n int
			n, werr = c.Write(k.Unread())
			total += int64(n)
		}
		k.Recycle()
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
func pieces(r io.Reader) func() (*mux.Chunk, error) {
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

func (e *eagerReader) next() (*mux.Chunk, error) {
	k := mux.NewChunk(e.size)
	n, err := e.r.Read(k.Space(e.size))
	k.SetLen(n)
	if n == e.size {
		e.size = copySize
	} else {
		e.size = smallCopy
	}
	return k, err
}
