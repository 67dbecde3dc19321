package rnet

import (
	"fmt"
	"net"
	"runtime"
	"syscall"

	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
)

// outBuffer is the registered memory that a Conn's Reserve gives out. It is
// the Conn's until Close, also when the session is gone. If it was given out by
// then it stays until the application's next call, for it may be filling it, or
// until nothing refers to the Conn any more.
type outBuffer struct {
	*link.Buffer
	reserved int // bytes given out and not committed

	unreachable runtime.Cleanup // for when nothing refers to the Conn any more
}

// MaxReserve is the largest n of Reserve, in bytes.
const MaxReserve = 256 << 10

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
	c.send.callMu.Lock()
	defer c.send.unlockOut()
	c.send.endReserve()
	p, err := c.send.reserve(n)
	if err != nil {
		return nil, c.opError("write", err)
	}
	return p, nil
}

// Commit sends the first n bytes of what Reserve returned, 0 to all of them.
// Each Reserve allows one Commit. It blocks as Write does; if it fails some of
// the bytes may be on their way, and it does not tell how many.
func (c *Conn) Commit(n int) error {
	c.send.callMu.Lock()
	defer c.send.unlockOut()
	if err := c.send.commit(n); err != nil {
		return c.opError("write", err)
	}
	return nil
}

func (w *sendHalf) reserve(n int) ([]byte, error) {
	if n <= 0 || n > MaxReserve {
		return nil, fmt.Errorf("rnet: %d bytes to reserve, want 1 to %d", n, MaxReserve)
	}
	if err := w.writable(); err != nil {
		return nil, err
	}
	out := w.buffer.Load()
	if out == nil {
		var err error
		out = new(outBuffer)
		if out.Buffer, err = w.c.s.link.NewBuffer(MaxReserve); err != nil {
			return nil, err
		}
		out.unreachable = runtime.AddCleanup(w.c, discardLater, out.Buffer)
		w.buffer.Store(out)
	}
	if err := w.awaitSent(out.Sent()); err != nil {
		return nil, err
	}
	out.reserved = n
	return out.Bytes()[:n:n], nil
}

// awaitSent waits until the device has come to a place.
func (w *sendHalf) awaitSent(until link.Mark) error {
	for !w.c.s.link.Reached(until) {
		w.wait.Begin()
		if err := w.writable(); err != nil {
			return err
		}
		if w.c.s.failed.Load() {
			return syscall.ECONNRESET
		}
		if w.c.s.awaitDone(w.c, until) {
			w.c.s.pollLock.Wait(&w.wait) // ended by a completion, deadline, close, peer death
			w.c.s.forgetDone(w.c)
		} else if !w.c.s.link.Reached(until) {
			return syscall.ECONNRESET
		}
	}
	if w.c.s.failed.Load() {
		return syscall.ECONNRESET
	}
	return w.writable()
}

func (w *sendHalf) commit(n int) error {
	if w.c.closed.Load() {
		w.endReserve()
		return net.ErrClosed
	}
	out := w.buffer.Load()
	if out == nil || n < 0 || n > out.reserved {
		return fmt.Errorf("rnet: %d bytes to commit, more than Reserve gave out", n)
	}
	w.endReserve()
	_, err := w.write(out.Bytes()[:n], out.Buffer)
	return err
}

// endReserve ends what the last Reserve gave out. callMu is held.
func (w *sendHalf) endReserve() {
	if out := w.buffer.Load(); out != nil {
		out.reserved = 0
	}
}

// unlockOut gives up callMu, and the memory of Reserve if the Conn was closed
// meanwhile.
func (w *sendHalf) unlockOut() {
	if w.c.closed.Load() {
		w.dropOut()
	}
	w.callMu.Unlock()
}

// dropOut gives up the memory of Reserve, if the application does not have it:
// at once, or when the device has sent what it holds. callMu is held.
func (w *sendHalf) dropOut() {
	out := w.buffer.Load()
	if out == nil || out.reserved > 0 {
		return
	}
	w.buffer.Store(nil)
	out.unreachable.Stop()
	out.Discard()
}

// discardLater gives up memory of Reserve whose Conn is garbage. It is a cleanup, and
// must not wait.
func discardLater(b *link.Buffer) { go b.Discard() }
