package mux

import (
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/release"
	"github.com/seed-b9b531af/ramjet/ring"
	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
	"github.com/seed-b9b531af/ramjet/rnet/internal/wait"
)

// sendHalf is the half of a stream that sends. The send lock guards what is below
// granted.
type sendHalf struct {
	st       *Stream
	callMu   sync.Mutex // one Write at a time, but for those that are a frame and need not wait
	end      deadline
	wait     wait.Waiter               // of who has callMu, and after Close has taken that once, of Close
	awaiting atomic.Pointer[awaiter]   // whoever waits to be able to write, without callMu
	buffer   atomic.Pointer[outBuffer] // what Reserve gives out; changed under callMu
	// position up to which the peer lets us send; written by the owner of the poll lock
	granted atomic.Uint64

	window   ring.SendWindow
	err      error
	links    [4]waitLink
	queues   uint8 // in which it is linked, as bits
	ctl      uint8 // control frames to send
	writing  bool  // a Write is under way that has callMu
	peerGone bool  // the peer has closed: one Write is taken, and goes nowhere
	broken   bool  // reset, by either side
	woken    bool  // woken from the queue for room, and not back yet
	wants    int32 // bytes that it waits to send there
	share    shareState
	readTo   uint64    // up to where the application had read when it closed
	finAt    link.Mark // where the FIN stands, zero before it
	sentAt   link.Mark // what Close or Reserve waits for the device to have done
}

func (w *sendHalf) init(st *Stream) {
	w.st = st
	w.window.Init(st.m.peer.Window)
	release.Store(&w.granted, uint64(st.m.peer.Window))
}

// writeFrame writes p if it fits into one frame that can be sent at once, and no other Write
// is under way, in the middle of which it would come. Such a Write needs no other lock than
// the send lock. It reports whether it was one; the error is that the mux fails.
func (w *sendHalf) writeFrame(p []byte) (done bool, err error) {
	m := w.st.m
	if len(p) == 0 || len(p) > m.link.MaxPayload() || w.writable() != nil {
		return false, nil
	}
	m.out.mu.Lock()
	defer m.out.mu.Unlock()
	if w.writing || w.err != nil || w.peerGone || !m.out.goesAtOnce(w, len(p)) {
		return false, nil
	}
	// As sendFrame does. A call less matters: with it the first Write of a goroutine would
	// outgrow the 2 KiB of stack that a goroutine begins with.
	if err := m.out.link.Send(m.out.dataHeader(w, len(p)), p); err != nil {
		return true, m.out.sendFailed(w, err)
	}
	m.out.frameSent(w, len(p))
	return true, nil
}

func (w *sendHalf) setWriting(on bool) {
	w.st.m.out.mu.Lock()
	w.writing = on
	w.st.m.out.mu.Unlock()
}

// write is Write without the lock. If out is not nil, p is the start of it, and
// is sent from where it lies.
func (w *sendHalf) write(p []byte, out *link.Buffer) (n int, err error) {
	w.setWriting(true)
	defer w.setWriting(false)
	inLine := false
	for {
		if err := w.writable(); err != nil {
			if inLine { // woken, perhaps: the next may go
				w.st.m.out.leaveQueue(w)
			}
			return n, err
		}
		if len(p) == 0 {
			return 0, w.sendable()
		}
		m, result, err := w.st.m.out.send(w, p[n:], out, n)
		n += m
		switch {
		case result == sendFailed:
			return n, w.st.reason(err)
		case result != sendOK:
			w.wait.Begin()
			if w.mayWait(result) {
				// ended by window, credit, deadline, close, reset, peer death
				w.st.m.pollLock.Wait(&w.wait)
			}
		case n == len(p):
			return n, nil
		}
		inLine = result == sendRoom || result == sendShare
	}
}

// writable tells why Write must not go on, nil if it may.
func (w *sendHalf) writable() error {
	if w.st.closed.Load() {
		return net.ErrClosed
	}
	if w.end.expired() {
		return os.ErrDeadlineExceeded
	}
	return nil
}

// sendable tells why nothing can be sent any more, nil if something can. A Write
// of nothing asks no more than that.
func (w *sendHalf) sendable() error {
	w.st.m.out.mu.Lock()
	defer w.st.m.out.mu.Unlock()
	return w.st.reason(w.ended())
}

// ended is sendable with the send lock held. A reset is reported once, by a Write or a Read:
// after that Writes fail with EPIPE.
func (w *sendHalf) ended() error {
	if w.err == syscall.ECONNRESET && w.st.told.Swap(true) {
		return syscall.EPIPE
	}
	return w.err
}

// reset is what the Write returns in which the mux fails: later ones need not wait for abort to
// know. The send lock is held.
func (w *sendHalf) reset() error {
	w.err = syscall.ECONNRESET
	w.st.told.Store(true)
	return w.err
}

// sendToNobody takes as much of p as the window allows, after the peer has closed, and
// throws it away. Over TCP it would be lost too, and the sender would learn of that only
// afterwards: programs count on it that the first Write after the end does not fail. The
// send lock is held.
func (w *sendHalf) sendToNobody(p []byte) (n int, err error) {
	w.err, w.broken = syscall.EPIPE, true
	w.wakeAwaiting()
	if n = min(len(p), w.window.Avail()); n == 0 {
		return 0, syscall.EPIPE
	}
	return n, nil
}

// mayWait looks once more, after begin, at what would have ended the wait.
func (w *sendHalf) mayWait(result sendResult) bool {
	if w.writable() != nil {
		return false
	}
	w.st.m.out.mu.Lock()
	defer w.st.m.out.mu.Unlock()
	if w.err != nil || w.peerGone || w.st.m.link.Stopped() {
		return false
	}
	if result == sendWindow {
		return w.window.Granted() >= w.granted.Load()
	}
	if result == sendShare {
		return w.waits(shareLink) && w.window.Granted() >= w.granted.Load()
	}
	return w.waits(roomLink) // popped already: woken before begin
}

// free returns how many bytes need no share. The send lock is held.
func (w *sendHalf) free() int {
	read := w.window.Granted() - uint64(w.st.m.peer.Window)
	return max(0, int(int64(read+StreamMinimum-w.window.Sent())))
}

// grant takes a WINDOW frame. The owner of the poll lock calls it.
func (w *sendHalf) grant(limit uint64) {
	if limit > w.granted.Load() {
		w.granted.Store(limit)
		w.wake()
	}
}

// close makes all further sending fail, and tells the peer that the application has closed, and
// has read up to read, or by ctlReset. If the stream has ended there is nothing to tell: a Write looks
// first whether it was closed, and so does rgnet before it calls that of a LoopStream.
func (w *sendHalf) close(end uint8, read uint64) {
	if w.st.ended() {
		return
	}
	out := &w.st.m.out
	out.mu.Lock()
	if w.err == nil {
		w.err = net.ErrClosed
	}
	w.readTo = read
	out.control.push(w, end)
	out.flushControl()
	out.mu.Unlock()
	w.wake()
}

// lingerUntil waits until the FIN has been posted, or never will be.
func (w *sendHalf) lingerUntil(t time.Time) {
	over := func() bool { return w.st.ends.Load()&(endFinSent|endReset|endDetached) != 0 || w.st.m.failed.Load() }
	if over() {
		return
	}
	w.outlastWrites()
	timer := time.AfterFunc(time.Until(t), w.wake)
	defer timer.Stop()
	for {
		w.wait.Begin()
		if over() || !time.Now().Before(t) {
			return
		}
		w.st.m.pollLock.Wait(&w.wait) // ended by the FIN's departure, peer death, the timer
	}
}

// outlastWrites gives wait to Close: it returns when the call has ended that had callMu. Those that get
// callMu after it find the stream closed, and neither wait nor keep each other waiting.
func (w *sendHalf) outlastWrites() {
	w.callMu.Lock() // ended by the call that Close has woken
	//lint:ignore SA2001 waiting for the holder is the purpose
	w.callMu.Unlock()
}

// flushUntil waits until the peer has our FIN. That has been posted: before,
// nobody knows where it stands.
func (w *sendHalf) flushUntil(end time.Time) {
	if !w.st.m.link.OnWire() {
		return
	}
	w.st.m.out.mu.Lock()
	until := w.finAt
	w.st.m.out.mu.Unlock()
	if w.st.m.link.Reached(until) {
		return
	}
	w.outlastWrites()
	timer := time.AfterFunc(time.Until(end), w.wake)
	defer timer.Stop()
	for {
		w.wait.Begin()
		if w.st.m.failed.Load() || !time.Now().Before(end) || !w.st.m.sent.await(w, until) {
			return
		}
		w.st.m.pollLock.Wait(&w.wait) // ended by the completion, peer death, the timer
		w.st.m.sent.leave(w)
	}
}

// wake ends the wait of a Write, and that of AwaitWrite.
func (w *sendHalf) wake() {
	if w.st.m.onLoop() {
		w.st.m.unblock(w.st)
		return
	}
	w.st.m.pollLock.Wake(&w.wait)
	w.wakeAwaiting()
}

// wakeAwaiting ends the wait of AwaitWrite.
func (w *sendHalf) wakeAwaiting() {
	if a := w.awaiting.Load(); a != nil {
		w.st.m.pollLock.Wake(&a.wait)
	}
}
