package rnet

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/seed-b9b531af/ramjet/ring"
	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
	"github.com/seed-b9b531af/ramjet/rnet/internal/loop"
	"github.com/seed-b9b531af/ramjet/rnet/internal/wait"
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

	// The receiving half; recvMu guards what is below it.
	readMu   sync.Mutex // one Read at a time
	recvWait wait.Waiter
	recvEnd  deadline
	recvMu   sync.Mutex
	queue    chunkQueue
	flow     ring.RecvWindow
	recvErr  error           // after the queue: io.EOF or a reset
	dst      []byte          // the buffer of the Read that waits
	dstLen   int             // bytes in it
	waiting  bool            // somebody waits for data
	dropped  bool            // closed: nobody will read any more
	counted  int32           // unread bytes that count in the session window
	eager    bool            // the peer wants to know of all that is read
	lent     *chunk          // Peek gave out a piece of it: the first one, or dropped; changed under readMu too
	forsaken runtime.Cleanup // of the latter, if it lies in the ring

	// Of streams that an event loop serves: who is told of what happens, written
	// by the owner of the poll lock and under recvMu; and whether the stream stands in
	// txWait, or is woken from it, which is the loop's to know.
	sink   loop.Sink
	inLine bool
	untold int // bytes that have come and the sink was not told of; guarded by the poll lock

	// The sending half; the session's txMu guards what is below sendWait.
	writeMu  sync.Mutex // one Write at a time
	sendEnd  deadline
	sendWait wait.Waiter
	granted  atomic.Uint64 // position up to which the peer lets us send; written by the owner of the poll lock
	window   ring.SendWindow
	sendErr  error
	peerGone bool                      // the peer has closed: one Write is taken, and goes nowhere
	broken   bool                      // reset, by either side
	out      atomic.Pointer[outBuffer] // what Reserve gives out; changed under writeMu
	ctl      uint8                     // control frames to send
	links    [4]connLink
	wants    int  // bytes that it waits to send, in txWait
	turn     bool // woken from there, and not back yet
	share    shareState
	finAt    link.Mark // where the FIN stands, zero before it
	sentAt   link.Mark // what has to be done, for who waits for that
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
	c.flow.Init(s.cfg.window)
	c.window.Init(s.peer.window)
	c.granted.Store(uint64(s.peer.window))
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

func (c *Conn) wakeReader() {
	c.s.pollLock.Wake(&c.recvWait)
}

func (c *Conn) wakeWriter() {
	if c.s.onLoop() {
		c.s.unblock(c)
		return
	}
	c.s.pollLock.Wake(&c.sendWait)
}

// grant takes a WINDOW frame. The owner of the poll lock calls it.
func (c *Conn) grant(limit uint64) {
	if limit > c.granted.Load() {
		c.granted.Store(limit)
		c.wakeWriter()
	}
}

func parseWindow(payload []byte) (uint64, error) {
	if len(payload) != 8 {
		return 0, fmt.Errorf("%w: WINDOW of %d bytes", errProtocol, len(payload))
	}
	return binary.LittleEndian.Uint64(payload), nil
}

// windowPayload returns the payload of a WINDOW frame. txMu is held, and the
// session's scratch is used.
func (c *Conn) windowPayload() []byte {
	c.recvMu.Lock()
	limit := c.flow.TakeUpdate()
	c.recvMu.Unlock()
	binary.LittleEndian.PutUint64(c.s.winScratch[:], limit)
	return c.s.winScratch[:]
}

// finished takes a FIN. closedToo says that the peer reads no more. The owner of the poll lock
// calls it.
func (c *Conn) finished(closedToo bool) {
	c.recvMu.Lock()
	if c.recvErr == nil {
		c.recvErr = io.EOF
	}
	c.waiting = false
	c.recvMu.Unlock()
	c.wakeReader()
	c.noteEnd(io.EOF)
	if closedToo {
		// What we might still send nobody would read: answer the FIN for
		// the application, so that the stream ends on both sides.
		c.s.txMu.Lock()
		c.peerGone = true
		c.s.txMu.Unlock()
		c.wakeWriter()
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
	c.recvMu.Lock()
	sendErr := err
	if c.recvErr == nil {
		c.recvErr = err
	} else if c.recvErr == io.EOF {
		sendErr = syscall.EPIPE
	}
	c.waiting = false
	c.recvMu.Unlock()
	c.s.txMu.Lock()
	c.broken = true
	if c.sendErr == nil || c.sendErr == syscall.EPIPE {
		c.sendErr = sendErr
	}
	c.s.txMu.Unlock()
	c.wakeWriter()
	c.wakeReader()
	c.noteEnd(err)
}

// failSend makes all further sending fail with err.
func (c *Conn) failSend(err error) {
	c.s.txMu.Lock()
	if c.sendErr == nil {
		c.sendErr = err
	}
	c.s.txMu.Unlock()
	c.wakeWriter()
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
	c.recvEnd.stop()
	c.sendEnd.stop()
	c.wakeReader()
	c.wakeWriter()
	unread := c.dropQueue()
	if c.out.Load() != nil {
		c.writeMu.Lock() // ended by the Write or Commit that Close has woken
		c.unlockOut()
	}
	linger := atomic.LoadInt32(&c.linger)
	c.failSend(net.ErrClosed)
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
		c.lingerUntil(end)
		c.flushUntil(end)
	}
	return nil
}

// refuse ends a stream that the listener did not take.
func (c *Conn) refuse() {
	atomic.StoreInt32(&c.linger, 0)
	c.closed.Store(true)
	c.failSend(net.ErrClosed)
	c.dropLater()
	c.s.control(c, ctlReset)
}

// lingerUntil waits until the FIN has been posted.
func (c *Conn) lingerUntil(t time.Time) {
	c.writeMu.Lock() // ended by the Write that Close has woken
	defer c.writeMu.Unlock()
	timer := time.AfterFunc(time.Until(t), c.wakeWriter)
	defer timer.Stop()
	for {
		c.sendWait.Begin()
		if c.ends.Load()&(endFinSent|endReset|endDetached) != 0 || c.s.failed.Load() || !time.Now().Before(t) {
			return
		}
		c.s.pollLock.Wait(&c.sendWait) // ended by the FIN's departure, peer death, the timer
	}
}

// flushTime bounds the wait of Close for the network, unless SetLinger allows
// more.
const flushTime = time.Second

// flushUntil waits until the peer has our FIN. That has been posted: before,
// nobody knows where it stands.
func (c *Conn) flushUntil(end time.Time) {
	if !c.s.link.OnWire() {
		return
	}
	c.s.txMu.Lock()
	until := c.finAt
	c.s.txMu.Unlock()
	if c.s.link.Reached(until) {
		return
	}
	c.writeMu.Lock() // ended by the Write that Close has woken
	defer c.writeMu.Unlock()
	timer := time.AfterFunc(time.Until(end), c.wakeWriter)
	defer timer.Stop()
	for {
		c.sendWait.Begin()
		if c.s.failed.Load() || !time.Now().Before(end) || !c.s.awaitDone(c, until) {
			return
		}
		c.s.pollLock.Wait(&c.sendWait) // ended by the completion, peer death, the timer
		c.s.forgetDone(c)
	}
}

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
	if c.sendErr == nil {
		c.sendErr = syscall.EPIPE
	}
	c.s.txMu.Unlock()
	switch {
	case over:
		return c.opError("close", syscall.ENOTCONN)
	case again:
		return nil
	}
	c.wakeWriter()
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
	c.recvMu.Lock()
	c.shut.Or(shutRead)
	c.recvMu.Unlock()
	c.wakeReader()
	return nil
}

// disconnected reports whether both directions have come to their end, or the
// connection was reset. txMu is held.
func (c *Conn) disconnected() bool {
	return c.broken || c.shut.Load()&shutWrite != 0 && c.ends.Load()&endFinRecv != 0
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
	if c.recvEnd.set(t, c) {
		c.wakeReader()
	}
	return nil
}

// SetWriteDeadline is SetReadDeadline for Write, Reserve, Commit and ReadFrom.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	if c.closed.Load() {
		return c.deadlineError()
	}
	if c.sendEnd.set(t, c) {
		c.wakeWriter()
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
