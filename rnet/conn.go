package rnet

import (
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/seed-b9b531af/ramjet/rnet/internal/mux"
)

// Conn is a stream of a session: a net.Conn with the semantics of a
// *net.TCPConn. Dial and Accept return one where the connection is
// accelerated, and a *net.TCPConn where it is not.
//
// All methods may be called from any goroutine. A Conn has no file descriptor, but
// lends one to callers of SyscallConn.
//
// Errors are *net.OpError values as package net makes them, which wrap
// net.ErrClosed after Close, os.ErrDeadlineExceeded after a deadline, EPIPE
// in Write after CloseWrite and in all Writes but the first after the peer's
// Close, and ECONNRESET if the peer has reset the connection, closed it without
// having read all, or died, or the session has failed. Only the io.EOF after the
// peer's last byte comes by itself. What is not as with TCP is listed in
// docs/differences.md.
type Conn struct {
	st     mux.Stream
	s      *session
	linger atomic.Int32 // one more than the seconds, 0: default
	asked  uint8        // for which of tcpNetworks, on the dialing side
	addrs  atomic.Pointer[connAddrs]
	pair   atomic.Pointer[socketPair] // made when a descriptor is asked for, see SyscallConn
}

// newConn makes a Conn whose stream is yet to be opened. The two are one piece of memory.
func newConn(s *session) *Conn { return &Conn{s: s} }

// Write writes p. It returns when all bytes have been copied out of p; the peer may
// not have them yet. It blocks while the peer's window or its
// ring is full. With an error it returns how many bytes of p are on their way.
// Of several Writes at once each is sent as a whole, one after the other.
func (c *Conn) Write(p []byte) (int, error) {
	n, err := c.st.Write(p)
	if err != nil {
		err = c.opError("write", err)
	}
	return n, err
}

// Close closes the stream. A blocked Read or Write returns, and what was written is delivered. The
// peer then reads io.EOF. If something that the peer has sent was not read it is lost, and the peer
// gets an error that wraps ECONNRESET instead. Close does not wait, unless SetLinger said so, the
// peer has no room for the end, because it has not seen hundreds of others yet, or the stream goes over a
// network. Then it waits up to a second, or as long as SetLinger said, for the end to be delivered, which
// nobody does when the process has ended.
func (c *Conn) Close() error {
	err := c.st.Close(c.linger.Load() - 1)
	c.dropSocketPair()
	return c.closeError(err)
}

// closeError gives an error of a method that closes the form that package net gives it.
func (c *Conn) closeError(err error) error {
	if err != nil {
		err = c.opError("close", err)
	}
	return err
}

// CloseWrite ends the sending half: the peer reads io.EOF after what was
// written. Reading goes on. It fails with an error that wraps ENOTCONN if the
// connection has come to its end on both sides.
func (c *Conn) CloseWrite() error { return c.closeError(c.st.CloseWrite()) }

// CloseRead ends the receiving half: Read returns what has arrived, and then
// io.EOF instead of waiting. The peer is not told, as with TCP: what it sends
// can still be read, and if nobody does its Write blocks in the end. It fails as
// CloseWrite does.
func (c *Conn) CloseRead() error { return c.closeError(c.st.CloseRead()) }

// LocalAddr returns the local address, a *net.TCPAddr that belongs to the Conn.
// The port of the dialing side is made up by the listener: it is none of TCP's,
// and no other connection of that listener has it. At a Unix socket it is a *net.UnixAddr,
// that of the socket on the listening side, and without a name on the other. It must
// not be changed.
func (c *Conn) LocalAddr() net.Addr {
	if u := c.s.unix; u != nil {
		return &u.local
	}
	return &c.tcpAddrs().local
}

// RemoteAddr returns the peer's address, see LocalAddr.
func (c *Conn) RemoteAddr() net.Addr {
	if u := c.s.unix; u != nil {
		return &u.remote
	}
	return &c.tcpAddrs().remote
}

// tcpNetworks are the networks of TCP. Dials to one address share a session, whichever they ask for.
var tcpNetworks = [...]string{"tcp", "tcp4", "tcp6"}

// network is the one that was dialed, or that the listener is of.
func (c *Conn) network() string {
	switch {
	case c.s.unix != nil:
		return c.s.unix.local.Net
	case c.s.listener != nil:
		return c.s.listener.network
	}
	return tcpNetworks[c.asked]
}

// SetDeadline sets the read and the write deadline; zero means none.
func (c *Conn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

// SetReadDeadline sets the time after which Read, Peek, Discard and WriteTo
// fail with an error that wraps os.ErrDeadlineExceeded, those included that
// wait already; zero means never.
func (c *Conn) SetReadDeadline(t time.Time) error {
	return c.setError(c.st.SetReadDeadline(t))
}

// SetWriteDeadline is SetReadDeadline for Write, Reserve, Commit and ReadFrom.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	return c.setError(c.st.SetWriteDeadline(t))
}

// setError gives the error of setting a deadline or a buffer the form
// that package net gives it, which leaves the peer out of it.
func (c *Conn) setError(err error) error {
	if err != nil {
		err = &net.OpError{Op: "set", Net: c.network(), Addr: c.LocalAddr(), Err: err}
	}
	return err
}

// SetLinger sets what Close does with what was not sent yet: sec < 0, the
// default, sends it in the background, for which Close waits up to a second over an
// RDMA device, or where the peer has no room; 0 resets the connection; sec > 0 waits up to sec seconds.
func (c *Conn) SetLinger(sec int) error {
	if c.st.Closed() {
		return c.opError("set", net.ErrClosed)
	}
	c.linger.Store(int32(max(-1, min(sec, 1<<30))) + 1)
	return nil
}

// SetNoDelay does nothing: data is never delayed.
func (c *Conn) SetNoDelay(bool) error { return c.option() }

// SetKeepAlive does nothing: the session detects a dead peer by itself.
func (c *Conn) SetKeepAlive(bool) error { return c.option() }

// SetKeepAlivePeriod does nothing, see SetKeepAlive.
func (c *Conn) SetKeepAlivePeriod(time.Duration) error { return c.option() }

// SetKeepAliveConfig does nothing, see SetKeepAlive.
func (c *Conn) SetKeepAliveConfig(net.KeepAliveConfig) error { return c.option() }

// SetReadBuffer does nothing: see Dialer and ListenConfig for the window.
func (c *Conn) SetReadBuffer(int) error { return c.buffer() }

// SetWriteBuffer does nothing, see SetReadBuffer.
func (c *Conn) SetWriteBuffer(int) error { return c.buffer() }

func (c *Conn) buffer() error {
	if c.st.Closed() {
		return c.setError(net.ErrClosed)
	}
	return nil
}

// option is buffer for what package net names both ends in the errors of.
func (c *Conn) option() error {
	if c.st.Closed() {
		return c.opError("set", net.ErrClosed)
	}
	return nil
}

// opError gives err the form that package net gives it.
func (c *Conn) opError(op string, err error) error {
	if errno, ok := err.(syscall.Errno); ok {
		call := strings.TrimPrefix(op, "raw-")
		switch op {
		case "close":
			call = "shutdown"
		case "raw-control": // what was written while it ran
			call = "write"
		}
		err = os.NewSyscallError(call, errno)
	}
	if op == "raw-control" { // leaves the peer out of it, as setError does
		return &net.OpError{Op: op, Net: c.network(), Addr: c.LocalAddr(), Err: err}
	}
	return &net.OpError{Op: op, Net: c.network(), Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}

// Read reads up to len(p) bytes. It waits until there is at least one, or the
// peer has ended its half: then it returns io.EOF. Of several Reads at once
// one waits, the others wait for it.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.st.Read(p)
	if err != nil && err != io.EOF {
		err = c.opError("read", err)
	}
	return n, err
}

// Peek returns at least the next n bytes without taking them, and all that
// lies together with them; it waits until they are there. With n greater than the
// stream's window, or the session's less 2 KiB (Limits.Window, Limits.SessionWindow),
// it fails with an error that wraps bufio.ErrBufferFull; if the peer ends before, it
// returns what there is, and io.EOF. An n below 1 counts as 1.
//
// The bytes are valid until the next call of Read, Discard, Peek or WriteTo,
// whatever happens meanwhile: a Close, by any goroutine, and the end of the
// session leave them where they are. After a Close they are freed by such a
// call, or when nothing refers to the connection any more.
func (c *Conn) Peek(n int) ([]byte, error) {
	p, err := c.st.Peek(n)
	if err != nil && err != io.EOF {
		err = c.opError("read", err)
	}
	return p, err
}

// Discard takes n bytes off the stream and waits until so many have arrived. If
// it takes fewer, it returns how many, and why: io.EOF if the peer has ended
// before. It may be more than Peek returned.
func (c *Conn) Discard(n int) (int, error) {
	done, err := c.st.Discard(n)
	if err != nil && err != io.EOF {
		err = c.opError("read", err)
	}
	return done, err
}

// MaxReserve is the largest n of Reserve, in bytes: 262,144.
const MaxReserve = mux.MaxReserve

// Reserve returns n bytes of registered memory, at most MaxReserve, to be
// filled and then sent by Commit, without a copy of ours: the device sends
// them from where they lie. It waits until the device has done so with what
// was committed before. The memory stays the connection's: it must not be
// used after Commit or the next Reserve. Until then it is valid, whatever happens
// meanwhile: a Close by another goroutine and the end of the session leave it
// where it is. One goroutine at a time may use the two. The first Reserve of a
// connection registers MaxReserve bytes, which count as pinned memory until Close,
// or if there is nothing committed of the last Reserve then, until the next call
// of the two or until nothing refers to the connection any more: keep the
// connection as long as the memory. It fails if they cannot be had.
func (c *Conn) Reserve(n int) ([]byte, error) {
	p, err := c.st.Reserve(n)
	if err != nil {
		return nil, c.opError("write", err)
	}
	return p, nil
}

// Commit sends the first n bytes of what Reserve returned, 0 to all of them.
// Each Reserve allows one Commit. It blocks as Write does; if it fails some of
// the bytes may be on their way, and it does not tell how many.
func (c *Conn) Commit(n int) error {
	if err := c.st.Commit(n); err != nil {
		return c.opError("write", err)
	}
	return nil
}
