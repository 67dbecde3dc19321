package link

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/seed-b9b531af/ramjet/internal/release"
	"github.com/seed-b9b531af/ramjet/ring"
	"github.com/seed-b9b531af/ramjet/verbs"
)

// receiver is the half of a link that receives.
type receiver struct {
	// The poll lock guards these.
	wcs      []verbs.WC // grows to PollBatch where that much comes at a time
	used     int        // receives used up and not posted again
	usedData int        // of these, how many count as slots
	rxSlots  ring.RecvSlots
	credit   bool // the batch brought credit
	violated bool // the peer broke the protocol: nothing it writes counts any more

	recvMu   sync.Mutex // the receive lock; it guards these
	rx       ring.Rx
	holders  holders
	framesIn uint64 // that have arrived
	movedOut uint64 // pieces
	asked    uint64 // released position at which sendCredit was called
	ringOver bool   // the link was closed: the last piece closes the ring

	released atomic.Uint64 // ring bytes released; written under the receive lock
	posted   atomic.Uint64 // receives posted for data; written under the poll lock
}

const (
	// PollBatch is the most that one poll takes.
	PollBatch = 32
	// firstBatch is how long wcs is at first: most sessions never have more at a time.
	firstBatch = 4
	// longMessage is from which length a message's room is worth being told at once.
	longMessage = 4 << 10
	// repostBatch is how many receives are posted again at a time.
	repostBatch = 64
)

// bareReceives are what is posted: receives without a buffer, for messages that go to
// the ring. All links have them together, and nobody writes to them.
var bareReceives [repostBatch]verbs.RecvWR

// postReceives fills the receive queue before the peer can write.
func (l *Link) postReceives() error {
	for left, _ := l.queues(); left > 0; {
		n, err := l.postRecvs(left)
		if err != nil {
			return err
		}
		left -= n
	}
	l.posted.Store(l.rxSlots.Posted())
	return nil
}

// postRecvs posts up to count receives and returns how many.
func (l *Link) postRecvs(count int) (int, error) {
	if l.emulation != nil {
		n, err := l.qp.PostRecv(l.emulation.receives(count))
		l.emulation.posted(n)
		return n, err
	}
	return l.qp.PostRecv(bareReceives[:min(count, len(bareReceives))])
}

// Batch is what a poll brought.
type Batch struct {
	Completions int
	// Credit says that there may be room to send again, or that a mark may be reached.
	Credit bool
	// Err is why the link cannot go on. What comes after it may be polled all the same.
	Err error
}

// Poll takes one batch off the CQ, gives the frames to the user, and what it does not
// keep back to the peer. After Fail it goes on to drain the CQ. The caller has the poll
// lock.
func (l *Link) Poll() Batch {
	n, err := l.cq.Poll(l.wcs)
	if n == 0 || err != nil {
		return Batch{Err: pollError(err)}
	}
	var b Batch
	l.recvMu.Lock()
	for i := range l.wcs[:n] {
		wc := &l.wcs[i]
		// What arrived after a failure of ours is still good, and where a
		// message lies is known only if none before it is left out.
		if err := l.complete(wc); err != nil && b.Err == nil {
			b.Err = err
		}
		if wc.ByteLen >= longMessage && l.publish() {
			l.sendCredit() // the peer need not wait for the end of the batch
		}
	}
	if l.rx.Retained() > int(l.ringSize)/2 {
		l.moveOut(int(l.ringSize) / 4)
	}
	due := l.publish()
	l.recvMu.Unlock()
	return l.finish(b, n, due, true)
}

// Collect is Poll of up to most completions, but that what arrived stays where it is until
// Release. The caller has the poll lock.
func (l *Link) Collect(most int) Batch {
	n, err := l.cq.Poll(l.wcs[:min(most, len(l.wcs))])
	if n == 0 || err != nil {
		return Batch{Err: pollError(err)}
	}
	var b Batch
	l.recvMu.Lock()
	for i := range l.wcs[:n] {
		if err := l.complete(&l.wcs[i]); err != nil && b.Err == nil {
			b.Err = err
		}
	}
	l.recvMu.Unlock()
	return l.finish(b, n, false, l.emulation == nil) // short messages lie in the places of receives
}

// Release gives back to the peer what the last Collect has brought. The caller has the
// poll lock.
func (l *Link) Release() error {
	l.recvMu.Lock()
	due := l.publish()
	l.recvMu.Unlock()
	return l.finish(Batch{}, 0, due, l.emulation != nil).Err
}

// finish posts receives and tells the peer what is due, when all frames were handled.
func (l *Link) finish(b Batch, n int, due, repost bool) Batch {
	b.Completions, b.Credit, l.credit = n, l.credit, false
	if n == len(l.wcs) && n < PollBatch {
		l.wcs = make([]verbs.WC, 2*n)
	}
	if b.Err != nil {
		return b
	}
	if repost && (l.used >= repostBatch || l.used-l.usedData >= controlSlots/2) {
		again, err := l.repost()
		if due = due || again; err != nil {
			b.Err = err
			return b
		}
	}
	if due {
		l.sendCredit()
	}
	if b.Credit && l.probeWanted.Load() {
		l.probeAgain()
	}
	return b
}

func pollError(err error) error {
	if err != nil {
		err = fmt.Errorf("rnet: poll CQ: %w", err)
	}
	return err
}

// complete works on one completion. The receive lock is held.
func (l *Link) complete(wc *verbs.WC) error {
	if wc.Status != verbs.WCSuccess {
		if wc.Status == verbs.WCWRFlushErr && l.failed.Load() {
			return nil
		}
		return fmt.Errorf("%w: %w", syscall.ECONNRESET, wc.Err())
	}
	var short []byte
	if l.emulation != nil && wc.Opcode == verbs.WCRecv {
		var err error
		if short, err = l.emulation.read(wc); err != nil {
			return err
		}
	}
	switch wc.Opcode {
	case verbs.WCRecvWriteWithImm:
		l.used++
		if wc.Imm&immCredit != 0 {
			released, slots := parseCreditImm(wc.Imm, l.peerReleased.Load(), l.peer.RingSize)
			l.noteCredit(released, slots)
			return nil
		}
		l.usedData++
		if l.violated {
			return nil
		}
		var err error
		if short != nil {
			err = l.takeFrames(short)
		} else {
			err = l.message(wc)
		}
		l.violated = err != nil
		return err
	case verbs.WCWrite, verbs.WCSend: // only what we asked a completion for
		l.bounceDone.Add(wc.ID >> 32)
		l.done.Add(wc.ID & (1<<32 - 1))
		l.credit = true
		return nil
	case verbs.WCRead:
		l.probesDone.Add(1)
		l.credit = true
		return nil
	}
	return fmt.Errorf("%w: completion of operation %d", ErrProtocol, wc.Opcode)
}

// message works on one message that was written to the ring.
func (l *Link) message(wc *verbs.WC) error {
	if wc.Imm&immRestart != 0 {
		if err := l.restart(); err != nil {
			return err
		}
	}
	off, err := l.rx.Place(int(wc.ByteLen))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	// The ring counts as released what nobody keeps. What was not published yet
	// (it was collected, and not handled) the peer has no credit for.
	if released := l.released.Load(); l.rx.Placed()-released > uint64(l.ringSize) {
		return fmt.Errorf("%w: message of %d bytes reaches to %d, released %d, ring %d",
			ErrProtocol, wc.ByteLen, l.rx.Placed(), released, l.ringSize)
	}
	return l.takeFrames(l.ring.Bytes()[off : off+wc.ByteLen])
}

// restart goes on at the start of the ring, as the peer does. Only who was told that
// all is released may.
func (l *Link) restart() error {
	if err := l.rx.Restart(); err != nil {
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	if released := l.released.Load(); released != l.rx.Placed() {
		return fmt.Errorf("%w: restart of the ring at %d, released %d", ErrProtocol, l.rx.Placed(), released)
	}
	return nil
}

// takeFrames works on the frames of one message.
func (l *Link) takeFrames(rest []byte) (err error) {
	for len(rest) > 0 {
		var h wireHeader
		var payload []byte
		if h, payload, rest, err = parseFrame(rest); err != nil {
			return err
		}
		l.noteCredit(l.peerReleased.Load()+ahead32(h.credit, l.peerReleased.Load()), h.slots)
		l.framesIn++
		if err = l.user.Frame(h.Header, payload); err != nil {
			return err
		}
	}
	return nil
}

// noteCredit stores what the peer gave back. takeCredit checks it. The receive lock is held:
// that it is given up is the fence between these stores and the caller's look at who waits
// for credit, after Poll or Collect. Who waits says so, with a fence, before it looks here.
func (l *Link) noteCredit(released uint64, slots uint16) {
	if released > l.peerReleased.Load() {
		release.Store(&l.peerReleased, released)
		l.credit = true
	}
	posted := l.peerPosted.Load()
	if ahead := int16(slots - uint16(posted)); ahead > 0 {
		release.Store(&l.peerPosted, posted+uint64(ahead))
		l.credit = true
	}
}

// Arrived returns how many messages have come since receives were posted last.
func (l *Link) Arrived() int { return l.used }

// repost posts receives in the place of those used up and reports whether the
// peer may want to know.
func (l *Link) repost() (due bool, err error) {
	for l.used > 0 {
		n, err := l.postRecvs(l.used)
		if err != nil {
			if l.failed.Load() {
				return false, nil
			}
			return false, fmt.Errorf("rnet: post receives: %w", err)
		}
		l.used -= n
	}
	l.rxSlots.Post(l.usedData)
	l.usedData = 0
	l.posted.Store(l.rxSlots.Posted())
	if due = l.rxSlots.CreditDue(); due {
		l.rxSlots.TakeCredit()
	}
	return due, nil
}

// publish notes what is released, for the sending half, and reports whether sendCredit is
// worth a call. The receive lock is held.
func (l *Link) publish() (due bool) {
	released := l.rx.Released()
	if released == l.released.Load() {
		return false
	}
	release.Store(&l.released, released) // seen late by the sending half, it tells less
	if released-l.asked < uint64(l.ringSize)/8 {
		return false
	}
	l.asked = released
	return true
}
