package mux

import (
	"fmt"

	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
)

// sendResult says how send ended if nothing was sent.
type sendResult uint8

const (
	sendOK     sendResult = iota
	sendWindow            // the stream's window is used up
	sendRoom              // the session's credit is used up
	sendShare             // the session window is used up
	sendFailed            // err says why
)

// send sends as much of p as one frame holds. A writer that was woken from txWait keeps
// its place: it need not go to the end of the queue.
//
// The bytes lie at off of out, or in ordinary memory if out is nil.
func (m *Mux) send(w *sendHalf, p []byte, out *link.Buffer, off int) (int, sendResult, error) {
	m.txMu.Lock()
	defer m.txMu.Unlock()
	defer m.wakeShare()
	woken := m.back(w)
	queued := woken || w.links[txLink].in
	if err := w.ended(); err != nil {
		m.passOn(w, queued)
		m.leaveShare(w)
		return 0, sendFailed, err
	}
	if w.peerGone {
		m.passOn(w, queued)
		m.leaveShare(w)
		n, err := w.sendToNobody(p)
		if err != nil {
			return 0, sendFailed, err
		}
		return n, sendOK, nil
	}
	want := min(len(p), m.link.MaxPayload())
	if min(w.window.Avail(), w.free()) < want {
		if err := w.window.Grant(w.granted.Load()); err != nil {
			go m.Fail(fmt.Errorf("rnet: peer opened the window too far: %w", err))
			return 0, sendFailed, w.reset()
		}
		if want = min(want, w.window.Avail()); want == 0 {
			m.passOn(w, queued)
			m.leaveShare(w)
			return 0, sendWindow, nil
		}
	}
	wanted := want
	if want = m.allot(w, want); want == 0 {
		m.passOn(w, queued)
		m.awaitShare(w, wanted)
		return 0, sendShare, nil
	}
	if woken && m.corked && want == len(p) && m.flushControl() && m.gatherFrame(w, p) {
		return want, sendOK, nil // tellUnblocked wakes the next
	}
	if !m.txBlocked.Load() || m.mayBarge(queued) {
		if n := m.link.Room(want); n > 0 {
			return m.sendFrame(w, p[:n], out, off)
		}
	}
	w.wants = want
	if woken {
		m.txWait.pushFirst(w, txLink)
	} else {
		m.txWait.push(w, txLink)
	}
	m.txBlocked.Store(true)
	if m.txWait.first() == w { // see txBlocked
		if n := m.link.Room(want); n > 0 {
			m.txWait.remove(w, txLink)
			return m.sendFrame(w, p[:n], out, off)
		}
	}
	m.stats.creditStalls.Add(1)
	return 0, sendRoom, nil
}

// goesAtOnce reports whether nothing keeps w from sending n bytes, which fit into a frame.
// txMu is held.
func (m *Mux) goesAtOnce(w *sendHalf, n int) bool {
	if m.txBlocked.Load() || w.woken {
		return false
	}
	if min(w.window.Avail(), w.free()) < n && w.window.Grant(w.granted.Load()) != nil || n > w.window.Avail() {
		return false
	}
	if n > w.free() && (w.share.woken || !m.shareWait.empty() || n > m.share.Avail()) {
		return false
	}
	return m.link.Room(n) == n
}

// mayBarge reports whether a writer may send although something is blocked: control
// frames go first, then the writers that waited in the queue.
func (m *Mux) mayBarge(queued bool) bool {
	return m.flushControl() && (queued || m.txWait.empty())
}

func (m *Mux) sendFrame(w *sendHalf, p []byte, out *link.Buffer, off int) (int, sendResult, error) {
	h := link.Header{Stream: w.st.id, Kind: FrameData, Flags: m.charge(w, len(p))}
	var err error
	if out == nil {
		err = m.link.Send(h, p)
	} else {
		err = m.link.SendFrom(h, out, off, len(p))
	}
	if err != nil {
		go m.Fail(fmt.Errorf("rnet: send: %w", err))
		return 0, sendFailed, w.reset()
	}
	m.leaveShare(w)
	m.framesOut++
	m.bytesOut += uint64(len(p))
	if !m.txWait.empty() {
		m.txWait.remove(w, txLink) // woken by something else
		m.wakeQueue()
	}
	return len(p), sendOK, nil
}

// passOn takes a writer that does not send out of the queue, and wakes the next in its
// place. txMu is held.
func (m *Mux) passOn(w *sendHalf, queued bool) {
	if queued {
		m.txWait.remove(w, txLink)
		m.wakeQueue()
	}
}

// leaveQueue is called when w gives up: it takes w out of txWait, or, if w was woken
// already, wakes the next in the queue.
func (m *Mux) leaveQueue(w *sendHalf) {
	m.txMu.Lock()
	m.back(w)
	m.passOn(w, true)
	m.leaveShare(w)
	m.wakeShare()
	m.txMu.Unlock()
}

// The most writers that are awake because they were first in the queue. Each that comes back
// makes room for the next. Writers that find no room would only go back to the queue, so
// few are woken at once. An event loop takes its whole list in one go.
const (
	wakeBatch     = 16
	wakeBatchLoop = 128
)

// back notes that w is back, and reports whether it was woken from the queue. txMu is
// held.
func (s *sender) back(w *sendHalf) bool {
	if !w.woken {
		return false
	}
	w.woken = false
	s.awake--
	s.promised -= w.wants + link.HeaderLen
	return true
}

// wakeFirst wakes the first in the queue, if there is room for it beside the writers that are
// awake. txMu is held.
func (m *Mux) wakeFirst() bool {
	w := m.txWait.first()
	if m.link.Room(w.wants) < 0 {
		return false
	}
	need := w.wants + link.HeaderLen
	messages, bytes := m.link.Unused()
	if m.awake > 0 && (m.awake >= messages || m.promised+need > bytes) {
		return false
	}
	m.txWait.pop(txLink)
	w.woken = true
	m.awake++
	m.promised += need
	w.wake()
	return true
}

// creditCame is called by the owner of the poll lock after it noted credit while something
// was blocked.
func (m *Mux) creditCame() {
	m.txMu.Lock()
	m.wakeQueue()
	m.txMu.Unlock()
}

// wakeQueue sends control frames and wakes writers, as far as there is room.
// txMu is held.
func (m *Mux) wakeQueue() {
	if !m.flushControl() {
		return
	}
	batch := wakeBatch
	if m.onLoop() {
		batch = wakeBatchLoop
	}
	for m.awake < batch {
		if m.txWait.empty() {
			m.txBlocked.Store(false)
			return
		}
		if !m.wakeFirst() {
			return
		}
	}
}

// wakeSenders wakes all who wait to send: the session is dead.
func (m *Mux) wakeSenders() {
	m.txMu.Lock()
	defer m.txMu.Unlock()
	m.link.Stop()
	for !m.txWait.empty() {
		m.txWait.pop(txLink).wake()
	}
	for !m.shareWait.empty() {
		m.shareWait.pop(shareLink).wake()
	}
	for !m.ctlQueue.empty() {
		w := m.ctlQueue.pop(ctlLink)
		w.ctl = 0
		w.wake()
	}
	for !m.sentWait.empty() {
		m.sentWait.pop(sentLink).wake()
	}
}
