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

// shareState is what a stream has to do with the session window when it sends. The send
// lock guards it.
type shareState struct {
	wants int32 // bytes that it waits to send
	woken bool  // woken from senderShare.queue, and not back yet
	told  bool  // the peer knows that it waits there, or did
}

// senderShare is the sender's side. The send lock guards it.
type senderShare struct {
	window   ring.SendWindow // counted bytes that may be sent
	queue    waitQueue       // streams that wait for more
	reserved int             // bytes of window for those that were woken from it
}

// allot returns how much of want bytes w may send as one frame, as far as the
// session window goes. w's window is as the peer has last told.
func (s *senderShare) allot(w *sendHalf, want int) int {
	free := w.free()
	if want <= free {
		return want
	}
	woken := s.back(w)
	avail := s.window.Avail()
	if first := s.queue.first(); !woken && first != nil && first != w {
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

// allows reports whether nothing of the session window keeps w from sending n bytes.
func (s *senderShare) allows(w *sendHalf, n int) bool {
	return n <= w.free() || !w.share.woken && s.queue.empty() && n <= s.window.Avail()
}

// charge counts a frame of n bytes of w, if it is not free, and returns its flags.
func (s *senderShare) charge(w *sendHalf, n int) (flags uint8) {
	if n > w.free() {
		s.window.Take(n)
		w.share.told = false
		flags = FlagCounted
	}
	w.window.Take(n)
	return flags
}

// await puts w in the queue, and reports whether the peer was told that it waits there.
func (s *senderShare) await(w *sendHalf, want int) (told bool) {
	w.share.wants = int32(want)
	s.queue.push(w, shareLink)
	told = w.share.told
	w.share.told = true
	return told
}

// leave takes w out of the queue, when it has sent or given up. wake comes before the send
// lock is given up.
func (s *senderShare) leave(w *sendHalf) {
	s.back(w)
	s.queue.remove(w, shareLink)
}

// back notes that w is back, and reports whether it was woken from the queue.
func (s *senderShare) back(w *sendHalf) bool {
	if !w.share.woken {
		return false
	}
	w.share.woken = false
	s.reserved -= int(w.share.wants)
	return true
}

// wake wakes those first in the queue for whom there is something. It is called
// before the send lock is given up by whoever has changed the queue, the window, or what is
// reserved of it: so nobody waits for what is there.
func (s *senderShare) wake() {
	for w := s.queue.first(); w != nil; w = s.queue.first() {
		if s.window.Avail()-s.reserved < min(int(w.share.wants), link.MinPiece) {
			return
		}
		s.queue.pop(shareLink)
		w.share.woken = true
		s.reserved += int(w.share.wants)
		w.wake()
	}
}

// receiverShare is the receiver's side.
type receiverShare struct {
	size        uint64        // what the peer may have unread that counts
	counted     uint64        // counted bytes that arrived; guarded by the poll lock
	freedAtOnce uint64        // of these, read on arrival, and not in freed yet; guarded by the poll lock
	freed       atomic.Uint64 // read, or thrown away
	told        atomic.Uint64 // position that the peer was last told; written under the send lock

	// starving counts the streams for which the peer lacks session window while a Peek waits for more than there
	// is. Nothing of them is read before that comes, so the peer is told of all that is read of others. A stream is
	// counted before the peer is told for it: what is freed later is told because of the count.
	starving atomic.Int32
}

func (r *receiverShare) init(size uint32) {
	r.size = uint64(size)
	r.told.Store(r.size)
}

// arrive counts n bytes, which are read at once as far as nobody says otherwise. The owner
// of the poll lock calls it.
func (r *receiverShare) arrive(n int) error {
	r.counted += uint64(n)
	if told := r.told.Load(); r.counted > told {
		return fmt.Errorf("%w: %d bytes count on the session, %d were granted", ErrProtocol, r.counted, told)
	}
	r.freedAtOnce += uint64(n)
	return nil
}

// free counts n bytes that are no longer held, and reports whether the peer should be told.
func (r *receiverShare) free(n uint64) bool {
	r.freed.Add(n)
	untold := r.untold()
	return untold >= r.size/4 || untold > 0 && r.starving.Load() > 0
}

// untold returns by how much the peer's session window would open.
func (r *receiverShare) untold() uint64 { return r.freed.Load() + r.size - r.told.Load() }

// settle frees what was read on arrival, when at least that much has come together or a stream
// starves, and reports whether the peer should be told. The owner of the poll lock calls it.
func (r *receiverShare) settle(least uint64) bool {
	n := r.freedAtOnce
	if n < least && r.starving.Load() == 0 {
		return false
	}
	r.freedAtOnce = 0
	return r.free(n)
}

// tell returns the position that the peer is told now, and whether that is news. The send
// lock is held.
func (r *receiverShare) tell() (limit uint64, news bool) {
	untold := r.untold()
	return r.told.Add(untold), untold > 0
}

// parsePosition reads the payload of a WINDOW or SESSION_WINDOW frame, or of the FIN of CloseWrite.
func parsePosition(payload []byte) (uint64, error) {
	if len(payload) != 8 {
		return 0, fmt.Errorf("%w: position of %d bytes", ErrProtocol, len(payload))
	}
	return binary.LittleEndian.Uint64(payload), nil
}
