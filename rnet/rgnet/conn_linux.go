package rgnet

import (
	"errors"
	"io"
	"math"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/panjf2000/gnet/v2"
	"github.com/panjf2000/gnet/v2/pkg/buffer/elastic"
	gerrors "github.com/panjf2000/gnet/v2/pkg/errors"

	"github.com/seed-b9b531af/ramjet/rnet/internal/mux"
)

// conn is a stream as a handler sees it. All fields but the atomic ones are of
// the loop's goroutine.
type conn struct {
	l      *eventLoop
	stream *mux.LoopStream

	state   connState
	blocked bool // Writable will come
	local   net.Addr
	remote  net.Addr
	ctx     any
	safe    atomic.Pointer[any]
	linger  atomic.Int64 // what SetLinger said, in nanoseconds, or closeTime
	shut    atomic.Bool  // OnClose has returned

	fresh   []byte             // what came last and was not read, where it arrived
	rest    int                // bytes that came with it, of which the handler was not told yet
	inbound elastic.RingBuffer // what came before
	lent    [][]byte           // copies that Next gave out
	peek    []byte             // the copy that Peek gave out last
	peeked  bool               // Peek gave out a piece of inbound
	out     outbound           // what has to wait for room
	patient *time.Timer        // ends the connection if that does not go in time

	held, waits       int          // bytes in inbound and out, as last told
	heldTold, outTold atomic.Int64 // the same, for statistics
}

// closeTime is how long what was written and had no room yet may take after the
// connection was closed: a peer that does not read must not keep it here for ever.
const closeTime = time.Second

var _ gnet.Conn = (*conn)(nil)

type connState uint8

const (
	connNew     connState = iota
	connOpen              // OnOpen was called
	connClosing           // OnClose is being called
	connClosed            // what is left is sent, perhaps
	connEnded             // nothing is left
)

func newConn(l *eventLoop, s *mux.LoopStream) *conn {
	c := &conn{l: l, stream: s}
	c.linger.Store(int64(closeTime))
	return c
}

// Opened calls OnOpen.
func (c *conn) Opened() {
	if c.l.shutdown {
		c.end(true)
		return
	}
	c.state = connOpen
	c.l.conns[c] = struct{}{}
	c.l.streams.Add(1)
	out, action := c.l.b.handler.OnOpen(c)
	if out != nil && c.state == connOpen {
		c.Write(out) // an error has closed the connection
	}
	if c.out.size > 0 { // ReadFrom took it
		c.Flush()
	}
	c.l.act(c, action)
	c.settle()
}

// Readable calls OnTraffic, with no more than ReadBufferCap bytes at a time.
func (c *conn) Readable(p []byte) {
	for len(p) > 0 && c.state == connOpen && !c.l.shutdown {
		n := min(len(p), c.l.b.readCap)
		c.fresh = p[:n:n]
		p = p[n:]
		c.rest = len(p)
		c.traffic()
	}
	if len(p) > 0 {
		c.rest = len(p) // it is closed, and has something to send still, or the engine ends
	}
}

// traffic calls OnTraffic and keeps what it leaves.
func (c *conn) traffic() error {
	action := c.l.b.handler.OnTraffic(c)
	err := c.l.act(c, action)
	c.settle()
	return err
}

// settle ends the time for which a handler may use what it was given.
func (c *conn) settle() {
	if len(c.fresh) > 0 && c.state == connOpen {
		c.inbound.Write(c.fresh)
	}
	c.fresh = nil
	c.endPeek()
	if len(c.lent) > 0 {
		c.takeBack()
	}
	c.tell()
}

// tell notes for statistics what the connection holds. Most hold nothing.
func (c *conn) tell() {
	if n := c.inbound.Buffered(); n != c.held {
		c.held = n
		c.heldTold.Store(int64(n))
	}
	if n := c.out.size; n != c.waits {
		c.waits = n
		c.outTold.Store(int64(n))
	}
}

// Buffered returns how many bytes wait in the connection: for the handler, and
// for room. Any goroutine may ask.
func (c *conn) Buffered() (inbound, outbound int) {
	return int(c.heldTold.Load()), int(c.outTold.Load())
}

// Writable goes on to send what had to wait.
func (c *conn) Writable() {
	c.blocked = false
	err := c.flush()
	c.tell()
	switch {
	case c.state == connClosed && (err != nil || c.out.size == 0):
		c.end(err != nil)
	case err != nil:
		c.close(os.NewSyscallError("write", err))
	}
}

// Ended closes the connection: the peer has sent its last byte, or is gone.
func (c *conn) Ended(err error) {
	if !errors.Is(err, io.EOF) {
		c.out.release()
		c.tell()
	}
	if c.state == connClosed && c.out.size == 0 {
		c.end(false)
		return
	}
	c.close(os.NewSyscallError("read", err))
}

// close calls OnClose and ends the stream, when what was written is sent.
func (c *conn) close(err error) error {
	if c.state != connOpen {
		return nil
	}
	c.state = connClosing
	c.l.streams.Add(-1) // OnClose may count the others
	action := c.l.b.handler.OnClose(c, err)
	c.state = connClosed
	c.inbound = elastic.RingBuffer{} // not to the pool: a handler may look at it still, or WriteTo write it
	c.ctx = nil
	c.safe.Store(nil)
	c.shut.Store(true)
	linger := time.Duration(c.linger.Load())
	if linger == 0 || c.flush() != nil || c.out.size == 0 {
		c.end(linger == 0)
	} else {
		c.tell()
		c.patient = time.AfterFunc(linger, func() { c.l.post(task{kind: taskEnd, c: c}) })
	}
	return c.l.act(c, action)
}

// giveUp ends a connection that was closed and has something to send still.
func (c *conn) giveUp() {
	if c.state == connClosed {
		c.end(true)
	}
}

// end ends the stream. If something was not sent, or the handler was not told of
// something, the peer learns it by a reset, as it would from a kernel that has bytes
// left that gnet did not read.
func (c *conn) end(reset bool) {
	if c.state == connEnded {
		return
	}
	c.state = connEnded
	if c.patient != nil {
		c.patient.Stop()
	}
	delete(c.l.conns, c)
	c.out.release()
	c.tell()
	c.stream.Close(reset || c.rest > 0)
}

// Context returns what SetContext was given last.
func (c *conn) Context() any { return c.ctx }

// SetContext keeps something of the handler's.
func (c *conn) SetContext(ctx any) { c.ctx = ctx }

// SafeContext is Context for any goroutine.
func (c *conn) SafeContext() any {
	if p := c.safe.Load(); p != nil {
		return *p
	}
	return nil
}

// SetSafeContext is SetContext for any goroutine.
func (c *conn) SetSafeContext(ctx any) { c.safe.Store(&ctx) }

// EventLoop returns the loop that serves the connection. It is not the value
// that TCP connections of the same loop return: see the package's documentation.
func (c *conn) EventLoop() gnet.EventLoop { return c.l }

// LocalAddr returns the local address, a *net.TCPAddr.
func (c *conn) LocalAddr() net.Addr {
	if c.local == nil {
		c.local = net.TCPAddrFromAddrPort(c.stream.LocalAddr())
	}
	return c.local
}

// RemoteAddr returns the peer's address, a *net.TCPAddr.
func (c *conn) RemoteAddr() net.Addr {
	if c.remote == nil {
		c.remote = net.TCPAddrFromAddrPort(c.stream.RemoteAddr())
	}
	return c.remote
}

// Wake calls OnTraffic on the loop.
func (c *conn) Wake(callback gnet.AsyncCallback) error {
	return c.l.post(task{kind: taskWake, c: c, callback: callback})
}

// Close closes the connection soon; any goroutine may call it. What was written
// and has not been sent still goes out, if it can within a second, or the time
// that SetLinger said. Called again after OnClose it ends that, by a reset.
func (c *conn) Close() error { return c.CloseWithCallback(nil) }

// CloseWithCallback is Close, and calls back on the loop.
func (c *conn) CloseWithCallback(callback gnet.AsyncCallback) error {
	kind := taskClose
	if c.shut.Load() {
		kind = taskEnd
	}
	return c.l.post(task{kind: kind, c: c, callback: callback})
}

// Fd returns -1: a stream has no descriptor.
func (c *conn) Fd() int { return -1 }

// Dup fails, see Fd.
func (c *conn) Dup() (int, error) { return -1, gerrors.ErrUnsupportedOp }

// SetReadBuffer does nothing.
func (c *conn) SetReadBuffer(int) error { return nil }

// SetWriteBuffer does nothing.
func (c *conn) SetWriteBuffer(int) error { return nil }

// SetLinger says for how many seconds after Close what was not sent may still be
// sent; what is left then is thrown away, and the peer told so by a reset. With 0
// that is at once. A negative number, as if it was not called, means one second.
func (c *conn) SetLinger(sec int) error {
	linger := closeTime
	if sec >= 0 {
		linger = time.Duration(min(sec, math.MaxInt32)) * time.Second
	}
	c.linger.Store(int64(linger))
	return nil
}

// SetKeepAlivePeriod does nothing: a dead peer is noticed.
func (c *conn) SetKeepAlivePeriod(time.Duration) error { return nil }

// SetKeepAlive does nothing, see SetKeepAlivePeriod.
func (c *conn) SetKeepAlive(bool, time.Duration, time.Duration, int) error { return nil }

// SetNoDelay does nothing: data is never delayed.
func (c *conn) SetNoDelay(bool) error { return nil }

// SetDeadline is unsupported, as in gnet.
func (c *conn) SetDeadline(time.Time) error { return gerrors.ErrUnsupportedOp }

// SetReadDeadline is unsupported, as in gnet.
func (c *conn) SetReadDeadline(time.Time) error { return gerrors.ErrUnsupportedOp }

// SetWriteDeadline is unsupported, as in gnet.
func (c *conn) SetWriteDeadline(time.Time) error { return gerrors.ErrUnsupportedOp }
