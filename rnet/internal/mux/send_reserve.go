package mux

import (
	"fmt"
	"net"
	"runtime"
	"syscall"

	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
)

// outBuffer is the registered memory that a stream's Reserve gives out. It is
// the stream's until Close, also when the session is gone. If it was given out by
// then it stays until the application's next call, for it may be filling it, or
// until nothing refers to the stream any more.
type outBuffer struct {
	*link.Buffer
	reserved int // bytes given out and not committed

	unreachable runtime.Cleanup // for when nothing refers to the stream any more
}

// MaxReserve is the largest n of Reserve, in bytes.
const MaxReserve = 256 << 10

// Reserve returns n bytes of registered memory, at most MaxReserve, to be filled and
// then sent by Commit. It waits until the device has sent what was committed before. The
// memory stays valid until Commit, the next Reserve, or until nothing refers to the
// stream any more.
func (st *Stream) Reserve(n int) ([]byte, error) {
	st.send.callMu.Lock()
	defer st.send.unlockOut()
	st.send.endReserve()
	return st.send.reserve(n)
}

// Commit sends the first n bytes of what Reserve returned. It blocks as Write does.
func (st *Stream) Commit(n int) error {
	st.send.callMu.Lock()
	defer st.send.unlockOut()
	return st.send.commit(n)
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
		if out.Buffer, err = w.st.m.link.NewBuffer(MaxReserve); err != nil {
			return nil, err
		}
		out.unreachable = runtime.AddCleanup(w.st, discardLater, out.Buffer)
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
	for !w.st.m.link.Reached(until) {
		w.wait.Begin()
		if err := w.writable(); err != nil {
			return err
		}
		if w.st.m.failed.Load() {
			return syscall.ECONNRESET
		}
		if w.st.m.sent.await(w, until) {
			w.st.m.pollLock.Wait(&w.wait) // ended by a completion, deadline, close, peer death
			w.st.m.sent.leave(w)
		} else if !w.st.m.link.Reached(until) {
			return syscall.ECONNRESET
		}
	}
	if w.st.m.failed.Load() {
		return syscall.ECONNRESET
	}
	return w.writable()
}

func (w *sendHalf) commit(n int) error {
	if w.st.closed.Load() {
		w.endReserve()
		return net.ErrClosed
	}
	out := w.buffer.Load()
	if out == nil || n < 0 || n > out.reserved {
		return fmt.Errorf("rnet: %d bytes to commit, more than Reserve gave out", n)
	}
	w.endReserve()
	w.st.m.lookBeforeWrite()
	_, err := w.write(out.Bytes()[:n], out.Buffer)
	return err
}

// endReserve ends what the last Reserve gave out. callMu is held.
func (w *sendHalf) endReserve() {
	if out := w.buffer.Load(); out != nil {
		out.reserved = 0
	}
}

// unlockOut gives up callMu, and the memory of Reserve if the stream was closed
// meanwhile.
func (w *sendHalf) unlockOut() {
	if w.st.closed.Load() {
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

// discardLater gives up memory of Reserve whose stream is garbage. It is a cleanup, and
// must not wait.
func discardLater(b *link.Buffer) { go b.Discard() }
