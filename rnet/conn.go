package rnet

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/seed-b9b531af/ramjet/rnet/internal/loop"
)

// Conn is a stream of a session: a net.Conn with the semantics of a
// *net.TCPConn. Dial and Accept return one where the connection is
// accelerated, and a *net.TCPConn where it is not.
//
// All methods may be called from any goroutine. A Conn has no file descriptor
// and does not implement syscall.Conn.
//
// Errors are *net.OpError values as package net makes them, which wrap
// net.ErrClosed after Close, os.ErrDeadlineExceeded after a deadline, EPIPE
// in Write after CloseWrite and in all Writes but the first after the peer's
// Close, and ECONNRESET if the peer has reset the connection, closed it without
// having read all, or died, or the session has failed. Only the io.EOF after the
// peer's last byte comes by itself. What is not as with TCP is listed in
// docs/differences.md.
type Conn struct {
	s      *session
	id     uint32
	linger int32 // seconds, -1: default; atomic

	closed atomic.Bool
	ends   atomic.Uint32 // end* bits
	addrs  atomic.Pointer[connAddrs]
	shut   atomic.Uint32 // shut* bits
	told   atomic.Bool   // a Read or Write has returned ECONNRESET

	recv receiveHalf
	send sendHalf

	// Of streams that an event loop serves: who is told of what happens, written
	// by the owner of the poll lock and under recv.mu; and whether the stream stands in
	// txWait, or is woken from it, which is the loop's to know.
	sink   loop.Sink
	inLine bool
	untold int // bytes that have come and the sink was not told of; guarded by the poll lock
}

// The events that end a stream. When it has ended the session forgets it.
const (
	endFinSent uint32 = 1 << iota
	endFinRecv
	endReset
	endDetached  // taken out of the session's table
	endCloseSent // the FIN that was sent said that we read no more
)

// What the application has ended by CloseWrite and CloseRead.
const (
	shutWrite uint32 = 1 << iota
	shutRead
)

func newConn(s *session) *Conn {
	c := &Conn{s: s, linger: -1}
	c.recv.init(c)
	c.send.init(c)
	return c
}

// ended reports whether the session has forgotten the stream: its id may
// stand for another one already.
func (c *Conn) ended() bool { return c.ends.Load()&endDetached != 0 }

// note adds ends and takes the stream out of the session when it has ended.
// It returns true if that was the last one: the caller then calls the
// session's left, after it has sent what is to be sent.
func (c *Conn) note(bits uint32) (last bool) {
	ends := c.ends.Or(bits) | bits
	if ends&endReset != 0 || ends&(endFinSent|endFinRecv) == endFinSent|endFinRecv {
		return c.detach()
	}
	return false
}

// noteArrived is note for what the peer has sent.
func (c *Conn) noteArrived(bits uint32) {
	if c.note(bits) {
		c.s.left()
	}
}

// detach is note for a stream that ends without a word.
func (c *Conn) detach() (last bool) {
	if c.ends.Or(endDetached)&endDetached != 0 {
		return false
	}
	return c.s.streams.remove(c, c.s.dialed) == 0
}

func parseWindow(payload []byte) (uint64, error) {
	if len(payload) != 8 {
		return 0, fmt.Errorf("%w: WINDOW of %d bytes", errProtocol, len(payload))
	}
	return binary.LittleEndian.Uint64(payload), nil
}

// finished takes a FIN. closedToo says that the peer reads no more. The owner of the poll lock
// calls it.
func (c *Conn) finished(closedToo bool) {
	c.recv.mu.Lock()
	if c.recv.err == nil {
		c.recv.err = io.EOF
	}
	c.recv.waiting = false
	c.recv.mu.Unlock()
	c.recv.wake()
	c.noteEnd(io.EOF)
	if closedToo {
		// What we might still send nobody would read: answer the FIN for
		// the application, so that the stream ends on both sides.
		c.s.txMu.Lock()
		c.send.peerGone = true
		c.s.txMu.Unlock()
		c.send.wake()
		c.s.control(c, ctlFin)
	}
	c.noteArrived(endFinRecv)
}

// reset takes a RESET. The owner of the poll lock calls it.
func (c *Conn) reset() {
	last := c.note(endReset) // before those who look for it are woken
	c.abort(syscall.ECONNRESET)
	c.s.forgetControl(c)
	if last {
		c.s.left()
	}
}

// resetPeer answers data that comes after CloseRead and CloseWrite: nothing that
// the peer could send is wanted, nor will it hear of us otherwise. The owner of the poll lock
// calls it.
func (c *Conn) resetPeer() {
	c.s.control(c, ctlReset)
	c.abort(syscall.ECONNRESET)
}

// abort ends both halves with err, unless they have come to their end. A Write
// after the peer's last byte fails with EPIPE all the same: Reads tell that end.
func (c *Conn) abort(err error) {
	c.recv.mu.Lock()
	sendErr := err
	if c.recv.err == nil {
		c.recv.err = err
	} else if c.recv.err == io.EOF {
		sendErr = syscall.EPIPE
	}
	c.recv.waiting = false
	c.recv.mu.Unlock()
	c.s.txMu.Lock()
	c.send.broken = true
	if c.send.err == nil || c.send.err == syscall.EPIPE {
		c.send.err = sendErr
	}
	c.s.txMu.Unlock()
	c.send.wake()
	c.recv.wake()
	c.noteEnd(err)
}

// Write writes p. It returns when all bytes have been copied out of p, which
// is not yet when the peer has them. It blocks while the peer's window or its
// ring is full. With an error it returns how many bytes of p are on their way.
// Of several Writes at once each is sent as a whole, one after the other.
func (c *Conn) Write(p []byte) (int, error) {
	c.send.callMu.Lock()
	n, err := c.send.write(p, nil)
	c.send.callMu.Unlock()
	if err != nil {
		err = c.opError("write", err)
	}
	return n, err
}

// Close closes the stream: a blocked Read or Write returns, what was written
// is delivered, and the peer reads io.EOF after it, or an error that wraps
// ECONNRESET if something that the peer has sent was not read: it is lost, and
// the peer could not know otherwise. It does not wait, unless
// SetLinger said so, or the device is one of a network: then it gives the
// network up to a second, or as long as SetLinger said, to deliver the end,
// for nobody would do so if the process ended at once.
func (c *Conn) Close() error {
	if !c.ended() && !c.closed.Load() {
		c.s.pollLock.Look() // what has arrived is lost by this, and the peer to be told
	}
	if c.closed.Swap(true) {
		return c.opError("close", net.ErrClosed)
	}
	c.recv.end.stop()
	c.send.end.stop()
	c.recv.wake()
	c.send.wake()
	unread := c.recv.drop()
	if c.send.buffer.Load() != nil {
		c.send.callMu.Lock() // ended by the Write or Commit that Close has woken
		c.send.unlockOut()
	}
	linger := atomic.LoadInt32(&c.linger)
	c.send.fail(net.ErrClosed)
	end := ctlFin
	if linger == 0 || unread {
		end = ctlReset
	}
	c.s.control(c, end)
	if !c.s.dialed {
		c.s.pollLock.Attend()
	}
	if end == ctlReset {
		return nil
	}
	patience := time.Duration(linger) * time.Second
	if c.s.link.OnWire() {
		patience = max(patience, flushTime)
	}
	if patience > 0 {
		end := time.Now().Add(patience)
		c.send.lingerUntil(end)
		c.send.flushUntil(end)
	}
	return nil
}

// refuse ends a stream that the listener did not take.
func (c *Conn) refuse() {
	atomic.StoreInt32(&c.linger, 0)
	c.closed.Store(true)
	c.send.fail(net.ErrClosed)
	c.recv.dropLater()
	c.s.control(c, ctlReset)
}

// flushTime bounds the wait of Close for the network, unless SetLinger allows
// more.
const flushTime = time.Second

// CloseWrite ends the sending half: the peer reads io.EOF after what was
// written. Reading goes on. It fails with an error that wraps ENOTCONN if the
// connection has come to its end on both sides.
func (c *Conn) CloseWrite() error {
	if c.closed.Load() {
		return c.opError("close", net.ErrClosed)
	}
	c.s.txMu.Lock()
	over := c.disconnected()
	again := c.shut.Or(shutWrite)&shutWrite != 0
	if c.send.err == nil {
		c.send.err = syscall.EPIPE
	}
	c.s.txMu.Unlock()
	switch {
	case over:
		return c.opError("close", syscall.ENOTCONN)
	case again:
		return nil
	}
	c.send.wake()
	c.s.control(c, ctlFin)
	return nil
}

// CloseRead ends the receiving half: Read returns what has arrived, and then
// io.EOF instead of waiting. The peer is not told, as with TCP: what it sends
// can still be read, and if nobody does its Write blocks in the end. It fails as
// CloseWrite does.
func (c *Conn) CloseRead() error {
	if c.closed.Load() {
		return c.opError("close", net.ErrClosed)
	}
	c.s.txMu.Lock()
	over := c.disconnected()
	c.s.txMu.Unlock()
	if over {
		return c.opError("close", syscall.ENOTCONN)
	}
	c.recv.mu.Lock()
	c.shut.Or(shutRead)
	c.recv.mu.Unlock()
	c.recv.wake()
	return nil
}

// disconnected reports whether both directions have come to their end, or the
// connection was reset. txMu is held.
func (c *Conn) disconnected() bool {
	return c.send.broken || c.shut.Load()&shutWrite != 0 && c.ends.Load()&endFinRecv != 0
}

// LocalAddr returns the local address, a *net.TCPAddr that belongs to the Conn.
// The port of the dialing side is made up by the listener: it is none of TCP's,
// and no other connection of that listener has it.
func (c *Conn) LocalAddr() net.Addr { return &c.tcpAddrs().local }

// RemoteAddr returns the peer's address, see LocalAddr.
func (c *Conn) RemoteAddr() net.Addr { return &c.tcpAddrs().remote }

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
	if c.closed.Load() {
		return c.deadlineError()
	}
	if c.recv.end.set(t, &c.recv) {
		c.recv.wake()
	}
	return nil
}

// SetWriteDeadline is SetReadDeadline for Write, Reserve, Commit and ReadFrom.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	if c.closed.Load() {
		return c.deadlineError()
	}
	if c.send.end.set(t, &c.send) {
		c.send.wake()
	}
	return nil
}

// deadlineError is what setting a deadline returns after Close. Package net leaves
// the peer out of it.
func (c *Conn) deadlineError() error {
	return &net.OpError{Op: "set", Net: "tcp", Addr: c.LocalAddr(), Err: net.ErrClosed}
}

// SetLinger sets what Close does with what was not sent yet: sec < 0, the
// default, sends it in the background; 0 resets the connection; sec > 0
// waits up to sec seconds.
func (c *Conn) SetLinger(sec int) error {
	if c.closed.Load() {
		return c.opError("set", net.ErrClosed)
	}
	atomic.StoreInt32(&c.linger, int32(max(-1, min(sec, 1<<30))))
	return nil
}

// SetNoDelay does nothing: data is never delayed.
func (c *Conn) SetNoDelay(bool) error { return c.option() }

// SetKeepAlive does nothing: the session notices a dead peer by itself.
func (c *Conn) SetKeepAlive(bool) error { return c.option() }

// SetKeepAlivePeriod does nothing, see SetKeepAlive.
func (c *Conn) SetKeepAlivePeriod(time.Duration) error { return c.option() }

// SetKeepAliveConfig does nothing, see SetKeepAlive.
func (c *Conn) SetKeepAliveConfig(net.KeepAliveConfig) error { return c.option() }

// SetReadBuffer does nothing: see Dialer and ListenConfig for the window.
func (c *Conn) SetReadBuffer(int) error { return c.option() }

// SetWriteBuffer does nothing, see SetReadBuffer.
func (c *Conn) SetWriteBuffer(int) error { return c.option() }

func (c *Conn) option() error {
	if c.closed.Load() {
		return c.opError("set", net.ErrClosed)
	}
	return nil
}

// reason prefers what the application did to how the session saw it.
func (c *Conn) reason(err error) error {
	if err != nil && c.closed.Load() {
		return net.ErrClosed
	}
	return err
}

// opError gives err the form that package net gives it.
func (c *Conn) opError(op string, err error) error {
	if errno, ok := err.(syscall.Errno); ok {
		call := op
		if op != "read" && op != "write" {
			call = "shutdown"
		}
		err = os.NewSyscallError(call, errno)
	}
	return &net.OpError{Op: op, Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}
