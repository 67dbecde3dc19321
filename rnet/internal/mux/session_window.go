package mux

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"github.com/seed-b9b531af/ramjet/ring"
	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
)

// The session window bounds what all streams of a session together may hold
// unread at the receiver. A DATA frame that ends within StreamMinimum bytes of what
// its stream's reader has taken, as far as the peer was told of that, is free. All
// others count, each as a whole, and have FlagCounted. What counts is limited by an
// absolute position, as the window of a stream is.
//
// So streams that nobody reads can use up the session window, but not stop another:
// each has its minimum besides. A sender that cannot go on says so (BLOCKED), and from
// then on is told of all that is read, however little.
//
// The receiver counts a stream's bytes as long as they are unread, and no more of
// them than are.

// StreamMinimum is what each stream may hold besides the session window: what the
// least chunk of memory takes anyway.
const StreamMinimum = 1 << 10

// shareState is what a stream has to do with the session window when it sends. txMu
// guards it.
type shareState struct {
	wants int32 // bytes that it waits to send
	woken bool  // woken from shareWait, and not back yet
	told  bool  // the peer knows that it waits there, or did
}

// sharedSender is the sender's side. txMu guards it.
type sharedSender struct {
	share     ring.SendWindow // counted bytes that may be sent
	shareWait waitQueue       // streams that wait for more
	reserved  int             // bytes of share for those that were woken from it
}

// sharedReceiver is the receiver's side.
type sharedReceiver struct {
	shareSize   uint64        // what the peer may have unread that counts
	counted     uint64        // counted bytes that arrived; guarded by the poll lock
	freedAtOnce uint64        // of these, read on arrival, and not in freed yet; guarded by the poll lock
	freed       atomic.Uint64 // read, or thrown away
	shareTold   atomic.Uint64 // position that the peer was last told; written under txMu
}

func (m *Mux) initShare() error {
	m.shareSize = uint64(m.cfg.SessionWindow)
	m.shareTold.Store(m.shareSize)
	return m.share.Init(m.peer.SessionWindow)
}

// allot returns how much of want bytes w may send as one frame, as far as the
// session window goes. txMu is held, and w's window is as the peer has last told.
func (s *sharedSender) allot(w *sendHalf, want int) int {
	free := w.free()
	if want <= free {
		return want
	}
	woken := s.backForShare(w)
	avail := s.share.Avail()
	if first := s.shareWait.first(); !woken && first != nil && first != w {
		avail = 0
	}
	switch {
	case want <= avail:
		return want
	case avail >= link.MinPiece && avail > free:
		return avail
	}
	return free
}

// charge counts a frame of n bytes of w, if it is not free, and returns its flags.
// txMu is held.
func (s *sharedSender) charge(w *sendHalf, n int) (flags uint8) {
	if n > w.free() {
		s.share.Take(n)
		w.share.told = false
		flags = FlagCounted
	}
	w.window.Take(n)
	return flags
}

// awaitShare puts w in the queue for the session window, and lets the peer know. txMu is
// held.
func (m *Mux) awaitShare(w *sendHalf, want int) {
	w.share.wants = int32(want)
	m.shareWait.push(w, shareLink)
	m.stats.creditStalls.Add(1)
	if !w.share.told {
		w.share.told = true
		w.ctl |= ctlBlocked
		m.ctlQueue.push(w, ctlLink)
		m.flushControl()
	}
}

// leaveShare takes w out of the queue, when it has sent or given up. txMu is held;
// wakeShare comes before it is given up.
func (s *sharedSender) leaveShare(w *sendHalf) {
	s.backForShare(w)
	s.shareWait.remove(w, shareLink)
}

// backForShare notes that w is back, and reports whether it was woken from the queue.
func (s *sharedSender) backForShare(w *sendHalf) bool {
	if !w.share.woken {
		return false
	}
	w.share.woken = false
	s.reserved -= int(w.share.wants)
	return true
}

// wakeShare wakes those first in the queue for whom there is something. It is called
// before txMu is given up by whoever has changed the queue, the window, or what is
// reserved of it: so nobody waits for what is there.
func (s *sharedSender) wakeShare() {
	for w := s.shareWait.first(); w != nil; w = s.shareWait.first() {
		if s.share.Avail()-s.reserved < min(int(w.share.wants), link.MinPiece) {
			return
		}
		s.shareWait.pop(shareLink)
		w.share.woken = true
		s.reserved += int(w.share.wants)
		w.wake()
	}
}

// shareGranted takes a SESSION_WINDOW frame. The owner of the poll lock calls it.
func (m *Mux) shareGranted(payload []byte) error {
	limit, err := parseWindow(payload)
	if err != nil {
		return err
	}
	m.txMu.Lock()
	defer m.txMu.Unlock()
	if err := m.share.Grant(limit); err != nil {
		return fmt.Errorf("%w: session window: %w", ErrProtocol, err)
	}
	m.wakeShare()
	return nil
}

// arrive counts n bytes of a frame that has arrived; for kept of them no Read waited.
// deliver calls it, with the receive half's mu held.
func (m *Mux) arrive(r *receiveHalf, n, kept int, counted bool) error {
	if !counted {
		read := r.flow.Granted() - uint64(m.cfg.Window)
		if end := r.flow.Arrived(); end > read+StreamMinimum {
			return fmt.Errorf("%w: stream %#x: %d bytes up to %d do not count, %d were read",
				ErrProtocol, r.st.id, n, end, read)
		}
		return nil
	}
	if err := m.arriveForNobody(n); err != nil {
		return err
	}
	m.freedAtOnce -= uint64(kept)
	r.counted += int32(kept)
	r.eager = false
	return nil
}

// arriveForNobody counts n bytes that are not kept. The owner of the poll lock calls it.
func (r *sharedReceiver) arriveForNobody(n int) error {
	r.counted += uint64(n)
	if told := r.shareTold.Load(); r.counted > told {
		return fmt.Errorf("%w: %d bytes count on the session, %d were granted", ErrProtocol, r.counted, told)
	}
	r.freedAtOnce += uint64(n)
	return nil
}

// untoldShare returns by how much the peer's session window would open.
func (r *sharedReceiver) untoldShare() uint64 {
	return r.freed.Load() + r.shareSize - r.shareTold.Load()
}

// settleAtOnce adds to freed what was read on arrival, when much has come together,
// and tells the peer. The owner of the poll lock calls it.
func (m *Mux) settleAtOnce() {
	if m.freedAtOnce >= m.shareSize/8 {
		m.addFreed()
		if m.untoldShare() >= m.shareSize/4 {
			m.tellShare()
		}
	}
}

func (r *sharedReceiver) addFreed() {
	r.freed.Add(r.freedAtOnce)
	r.freedAtOnce = 0
}

// peerBlocked takes a BLOCKED frame: the peer has data for st, and neither session
// window nor what is free. The owner of the poll lock calls it.
func (m *Mux) peerBlocked(st *Stream) {
	m.addFreed()
	m.tellShare()
	if st == nil {
		return
	}
	st.recv.mu.Lock()
	st.recv.eager = true
	bits := st.recv.settle(st.recv.err == nil && !st.closed.Load())
	st.recv.mu.Unlock()
	if bits != 0 {
		st.control(bits)
	}
}

// tellShare tells the peer of the session window, if that has moved.
func (m *Mux) tellShare() {
	m.txMu.Lock()
	m.ctlShare = true
	m.flushControl()
	m.txMu.Unlock()
}

// postShare posts a SESSION_WINDOW frame, if there is something to tell. txMu is
// held.
func (m *Mux) postShare() error {
	untold := m.untoldShare()
	if untold == 0 {
		return nil
	}
	limit := m.shareTold.Add(untold)
	binary.LittleEndian.PutUint64(m.winScratch[:], limit)
	return m.link.Send(link.Header{Kind: FrameSessionWindow}, m.winScratch[:])
}

// parseWindow reads the payload of a WINDOW or SESSION_WINDOW frame.
func parseWindow(payload []byte) (uint64, error) {
	if len(payload) != 8 {
		return 0, fmt.Errorf("%w: WINDOW of %d bytes", ErrProtocol, len(payload))
	}
	return binary.LittleEndian.Uint64(payload), nil
}
