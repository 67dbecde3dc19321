package mux

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
)

// sender is the part of a mux that sends. The way of a byte out:
//
//  1. Conn.Write sends what is a frame and need not wait under the send lock alone
//     (writeFrame). Otherwise it takes the stream's write lock and cuts p into pieces of at
//     most a frame's payload; send takes the send lock for each.
//  2. The piece needs the stream's window, the session's (share) and room on the
//     link, which sends it at once.
//  3. If something is missing, the writer joins the queue for room or that of share, and
//     waits; the owner of the poll lock wakes it when credit has come.
type sender struct {
	mu   sync.Mutex // the send lock, also the link's; guards all of sender but the atomics
	link *link.Link
	mux  session

	room     waitQueue // writers that wait for room
	awake    int       // writers that were woken from it and have not come back yet
	promised int       // bytes of the ring that they will take
	share    senderShare
	control  controls
	cork     cork

	frames, bytes uint64 // of data, that were sent
	stalls        uint64 // sends that had to wait for the peer

	// blocked says that something waits for credit. It is set under mu before the link is
	// asked again; the link notes credit before its Poll returns, after which the caller
	// looks at blocked: one of the two sees the other.
	blocked atomic.Bool

	patience patience // of Closes that find no room
}

// session is the mux as its sender sees it.
type session interface {
	Fail(cause error)
	onLoop() bool
}

// sendResult says how send ended if nothing was sent.
type sendResult uint8

const (
	sendOK     sendResult = iota
	sendWindow            // the stream's window is used up
	sendRoom              // the session's credit is used up
	sendShare             // the session window is used up
	sendFailed            // err says why
)

// send sends as much of p as one frame holds. A writer that was woken from the queue for room
// keeps its place: it need not go to the end of the queue.
//
// The bytes lie at off of out, or in ordinary memory if out is nil.
func (s *sender) send(w *sendHalf, p []byte, out *link.Buffer, off int) (int, sendResult, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.share.wake()
	woken := s.back(w)
	queued := woken || w.waits(roomLink)
	if err := w.ended(); err != nil {
		s.passOn(w, queued)
		s.share.leave(w)
		return 0, sendFailed, err
	}
	if w.peerGone {
		s.passOn(w, queued)
		s.share.leave(w)
		n, err := w.sendToNobody(p)
		if err != nil {
			return 0, sendFailed, err
		}
		return n, sendOK, nil
	}
	if s.link.Stopped() { // no credit comes any more, nor does the queue empty
		s.passOn(w, queued)
		s.share.leave(w)
		return 0, sendFailed, w.reset()
	}
	want := min(len(p), s.link.MaxPayload())
	if min(w.window.Avail(), w.free()) < want {
		if err := w.window.Grant(w.granted.Load()); err != nil {
			go s.mux.Fail(fmt.Errorf("rnet: peer opened the window too far: %w", err))
			return 0, sendFailed, w.reset()
		}
		if want = min(want, w.window.Avail()); want == 0 {
			s.passOn(w, queued)
			s.share.leave(w)
			s.control.sweepSoon()
			return 0, sendWindow, nil
		}
	}
	wanted := want
	if want = s.share.allot(w, want); want == 0 {
		s.passOn(w, queued)
		s.awaitShare(w, wanted)
		return 0, sendShare, nil
	}
	if woken && s.cork.on && want == len(p) && s.flushControl() && s.gatherFrame(w, p) {
		return want, sendOK, nil // tellUnblocked wakes the next
	}
	if !s.blocked.Load() || s.mayBarge(queued) {
		if n := s.link.Room(want); n > 0 {
			return s.sendFrame(w, p[:n], out, off)
		}
	}
	w.wants = int32(want)
	if woken {
		s.room.pushFirst(w, roomLink)
	} else {
		s.room.push(w, roomLink)
	}
	s.blocked.Store(true)
	if s.room.first() == w && s.flushControl() { // see blocked
		if n := s.link.Room(want); n > 0 {
			s.room.remove(w, roomLink)
			return s.sendFrame(w, p[:n], out, off)
		}
	}
	s.stalls++
	s.control.sweepSoon()
	return 0, sendRoom, nil
}

// goesAtOnce reports whether nothing keeps w from sending n bytes, which fit into a frame.
// mu is held.
func (s *sender) goesAtOnce(w *sendHalf, n int) bool {
	if s.blocked.Load() || w.woken {
		return false
	}
	if min(w.window.Avail(), w.free()) < n && w.window.Grant(w.granted.Load()) != nil || n > w.window.Avail() {
		return false
	}
	return s.share.allows(w, n) && s.link.Room(n) == n
}

// mayBarge reports whether a writer may send although something is blocked: control
// frames go first, then the writers that waited in the queue.
func (s *sender) mayBarge(queued bool) bool {
	return s.flushControl() && (queued || s.room.empty())
}

func (s *sender) sendFrame(w *sendHalf, p []byte, out *link.Buffer, off int) (int, sendResult, error) {
	h := s.dataHeader(w, len(p))
	var err error
	if out == nil {
		err = s.link.Send(h, p)
	} else {
		err = s.link.SendFrom(h, out, off, len(p))
	}
	if err != nil {
		return 0, sendFailed, s.sendFailed(w, err)
	}
	s.frameSent(w, len(p))
	return len(p), sendOK, nil
}

// dataHeader returns the header of a frame of w with n bytes, which it charges to the windows.
func (s *sender) dataHeader(w *sendHalf, n int) link.Header {
	return link.Header{Stream: w.st.id, Kind: FrameData, Flags: s.share.charge(w, n)}
}

// sendFailed ends the mux because the link does not send, and returns what the Write returns.
func (s *sender) sendFailed(w *sendHalf, err error) error {
	go s.mux.Fail(fmt.Errorf("rnet: send: %w", err))
	return w.reset()
}

// frameSent accounts for a frame of w with n bytes.
func (s *sender) frameSent(w *sendHalf, n int) {
	s.share.leave(w)
	s.frames++
	s.bytes += uint64(n)
	if !s.room.empty() {
		s.room.remove(w, roomLink) // woken by something else
		s.wakeQueue()
	}
}

// passOn takes a writer that does not send out of the queue, and wakes the next in its
// place. mu is held.
func (s *sender) passOn(w *sendHalf, queued bool) {
	if queued {
		s.room.remove(w, roomLink)
		s.wakeQueue()
	}
}

// leaveQueue is called when w gives up: it takes w out of the queue for room, or, if w was woken
// already, wakes the next in the queue.
func (s *sender) leaveQueue(w *sendHalf) {
	s.mu.Lock()
	s.back(w)
	s.passOn(w, true)
	s.share.leave(w)
	s.share.wake()
	s.mu.Unlock()
}

// The most writers that are awake because they were first in the queue. Each that comes back
// makes room for the next. Writers that find no room would only go back to the queue, so
// few are woken at once. An event loop takes its whole list in one go.
const (
	wakeBatch     = 16
	wakeBatchLoop = 128
)

// back notes that w is back, and reports whether it was woken from the queue. mu is
// held.
func (s *sender) back(w *sendHalf) bool {
	if !w.woken {
		return false
	}
	w.woken = false
	s.awake--
	s.promised -= int(w.wants) + link.HeaderLen
	return true
}

// wakeFirst wakes the first in the queue, if there is room for it beside the writers that are
// awake. mu is held.
func (s *sender) wakeFirst() bool {
	w := s.room.first()
	wants := int(w.wants)
	if s.link.Room(wants) < 0 {
		return false
	}
	need := wants + link.HeaderLen
	messages, bytes := s.link.Unused()
	if s.awake > 0 && (s.awake >= messages || s.promised+need > bytes) {
		return false
	}
	s.room.pop(roomLink)
	w.woken = true
	s.awake++
	s.promised += need
	w.wake()
	return true
}

// creditCame is called by the owner of the poll lock after it noted credit while something
// was blocked.
func (s *sender) creditCame() {
	s.mu.Lock()
	s.wakeQueue()
	s.mu.Unlock()
}

// wakeQueue sends control frames and wakes writers, as far as there is room.
// mu is held.
func (s *sender) wakeQueue() {
	if !s.flushControl() {
		return
	}
	batch := wakeBatch
	if s.mux.onLoop() {
		batch = wakeBatchLoop
	}
	for s.awake < batch {
		if s.room.empty() {
			s.blocked.Store(false)
			s.patience.spent = 0
			return
		}
		if !s.wakeFirst() {
			return
		}
	}
}

// patience bounds how long the Closes of a session wait for room: FlushTime in all while something is
// blocked, and a tenth of the time that passes. So a peer that takes nothing, or one end after the other,
// holds up no more than that. The send lock guards it.
type patience struct {
	spent time.Duration
	at    time.Time // when spent was so much
}

// leastPatience is the least for which it is worth it to wait.
const leastPatience = 10 * time.Millisecond

// spend notes that a Close has waited so long.
func (p *patience) spend(took time.Duration) { p.spent = min(FlushTime, p.spent+took) }

// left returns how long a Close may wait that begins now.
func (p *patience) left(now time.Time) time.Duration {
	p.spent = max(0, p.spent-now.Sub(p.at)/10)
	p.at = now
	return FlushTime - p.spent
}

// awaitShare puts w in the queue for the session window, and lets the peer know. mu is held.
func (s *sender) awaitShare(w *sendHalf, want int) {
	s.stalls++
	s.control.sweepSoon()
	if !s.share.await(w, want) {
		s.control.push(w, ctlBlocked)
		s.flushControl()
	}
}

// shareGranted takes a SESSION_WINDOW frame. The owner of the poll lock calls it.
func (s *sender) shareGranted(payload []byte) error {
	limit, err := parsePosition(payload)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.share.window.Grant(limit); err != nil {
		return fmt.Errorf("%w: session window: %w", ErrProtocol, err)
	}
	s.share.wake()
	return nil
}

// end wakes all who wait to send: the session is dead.
func (s *sender) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.link.Stop()
	for !s.room.empty() {
		s.room.pop(roomLink).wake()
	}
	for !s.share.queue.empty() {
		s.share.queue.pop(shareLink).wake()
	}
	for !s.control.streams.empty() {
		w := s.control.streams.pop(ctlLink)
		w.ctl = 0
		w.wake()
	}
}
