//go:build unix

package rnet

import (
	"io"
	"net"
	"os"
	"reflect"
	"syscall"

	"github.com/seed-b9b531af/ramjet/rnet/internal/mux"
)

// socketReader reads from a socket of package net, by its descriptor, so that
// memory is taken when there is something to read.
type socketReader struct {
	conn  net.Conn
	raw   syscall.RawConn
	limit *io.LimitedReader // nil: none
	tryIt func(fd uintptr) bool

	// What try has read.
	k   *mux.Chunk
	err error
}

// socketOf returns a reader of the stream socket that r is, or that is behind the
// io.LimitedReader that r is, nil if it is neither. A type of another package may
// be a socket and something before it.
func socketOf(r io.Reader) *socketReader {
	limit, _ := r.(*io.LimitedReader)
	if limit != nil {
		r = limit.R
	}
	conn, ok := r.(net.Conn)
	if !ok || !isOfNet(conn) || !isStream(conn.LocalAddr()) {
		return nil
	}
	sys, ok := r.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := sys.SyscallConn()
	if err != nil {
		return nil
	}
	s := &socketReader{conn: conn, raw: raw, limit: limit}
	s.tryIt = s.try
	return s
}

// isOfNet reports whether a connection's type is package net's.
func isOfNet(c net.Conn) bool {
	t := reflect.TypeOf(c)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.PkgPath() == "net"
}

func isStream(a net.Addr) bool {
	switch a := a.(type) {
	case *net.TCPAddr:
		return true
	case *net.UnixAddr:
		return a.Net == "unix"
	}
	return false
}

func (s *socketReader) next() (*mux.Chunk, error) {
	if s.limit != nil && s.limit.N <= 0 {
		return mux.NewChunk(0), io.EOF
	}
	s.k, s.err = nil, nil
	// closed, or a deadline: Read says it as it should be said
	if s.raw.Read(s.tryIt) != nil || s.k == nil {
		one := eagerReader{r: s.conn, size: 1}
		s.k, s.err = one.next()
	}
	if s.limit != nil {
		s.limit.N -= int64(len(s.k.Unread()))
	}
	return s.k, s.err
}

// try reads what is there, and returns false if there is nothing.
func (s *socketReader) try(fd uintptr) bool {
	size := copySize
	if s.limit != nil {
		size = int(min(int64(size), s.limit.N))
	}
	k := mux.NewChunk(size)
	n, err := syscall.Read(int(fd), k.Space(size))
	for err == syscall.EINTR {
		n, err = syscall.Read(int(fd), k.Space(size))
	}
	if err == syscall.EAGAIN {
		k.Recycle()
		return false
	}
	k.SetLen(max(n, 0))
	switch {
	case err != nil:
		s.err = &net.OpError{
			Op: "read", Net: s.conn.LocalAddr().Network(), Source: s.conn.LocalAddr(), Addr: s.conn.RemoteAddr(),
			Err: os.NewSyscallError("read", err),
		}
	case n == 0:
		s.err = io.EOF
	}
	s.k = k
	return true
}
