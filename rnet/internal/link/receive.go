package link

import (
	"fmt"
	"syscall"
	"unsafe"

	"github.com/seed-b9b531af/ramjet/internal/prefetch"
	"github.com/seed-b9b531af/ramjet/internal/release"
	"github.com/seed-b9b531af/ramjet/ring"
	"github.com/seed-b9b531af/ramjet/verbs"
)

const (
	// PollBatch is the most that one poll takes.
	PollBatch = 32
	// firstBatch is the least that Poll looks for at a time: most sessions never have more.
	// Fewer completions mean that no more had arrived.
	firstBatch = 4
	// longMessage is from which length a message's room is worth being told at once.
	longMessage = 4 << 10
)

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
	l.in.mu.Lock()
	for i := range l.wcs[:n] {
		wc := &l.wcs[i]
		// What arrived after a failure of ours is still good, and where a
		// message lies is known only if none before it is left out.
		if err := l.complete(wc); err != nil && b.Err == nil {
			b.Err = err
		}
		if wc.ByteLen >= longMessage && l.in.publish(&l.given) {
			l.sendCredit() // the peer need not wait for the end of the batch
		}
	}
	if l.in.rx.Retained() > int(l.in.size)/2 {
		l.in.moveOut(int(l.in.size) / 4)
	}
	due := l.in.publish(&l.given)
	l.in.mu.Unlock()
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
	l.in.mu.Lock()
	for i := range l.wcs[:n] {
		if err := l.complete(&l.wcs[i]); err != nil && b.Err == nil {
			b.Err = err
		}
	}
	l.in.mu.Unlock()
	// short messages lie in the places of receives
	return l.finish(b, n, false, l.has.emulation == nil)
}

// Release gives back to the peer what the last Collect has brought. The caller has the
// poll lock.
func (l *Link) Release() error {
	l.in.mu.Lock()
	due := l.in.publish(&l.given)
	l.in.mu.Unlock()
	return l.finish(Batch{}, 0, due, l.has.emulation != nil).Err
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
	if repost && l.receives.due() {
		again, err := l.receives.repost(&l.given)
		if due = due || again; err != nil && !l.failed.Load() {
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
	if l.has.emulation != nil && wc.Opcode == verbs.WCRecv {
		var err error
		if short, err = l.has.emulation.read(wc); err != nil {
			l.violated = true
			return err
		}
	}
	switch wc.Opcode {
	case verbs.WCRecvWriteWithImm:
		l.receives.used++
		if wc.Imm&immCredit != 0 {
			released, slots := parseCreditImm(wc.Imm, l.peerReleased.Load(), l.peer.RingSize)
			l.noteCredit(released, slots)
			return nil
		}
		l.receives.usedData++
		if l.violated {
			return nil
		}
		var err error
		message := short
		if short == nil {
			message, err = l.in.message(wc, l.given.released.Load())
		}
		if err == nil {
			err = l.takeFrames(message)
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
	l.violated = true // by a SEND, where there are immediates
	return fmt.Errorf("%w: completion of operation %d", ErrProtocol, wc.Opcode)
}

// takeFrames works on the frames of one message.
func (l *Link) takeFrames(rest []byte) (err error) {
	if len(rest) > prefetch.Line {
		prefetch.ForRead(uintptr(unsafe.Pointer(&rest[prefetch.Line]))) // comes while the header is read
	}
	for len(rest) > 0 {
		var h wireHeader
		var payload []byte
		if h, payload, rest, err = parseFrame(rest); err != nil {
			return err
		}
		l.noteCredit(l.peerReleased.Load()+ahead32(h.credit, l.peerReleased.Load()), h.slots)
		l.in.frames++
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

// Arrived returns how many frames have come. The caller has the poll lock.
func (l *Link) Arrived() uint64 { return l.in.frames }

// Retain keeps the message of the present Frame in the ring, until Free. Frame calls it.
func (l *Link) Retain(k Holder) ring.Token {
	t := l.in.rx.Retain()
	l.in.holders.add(t, k)
	return t
}

// Free gives back what Retain has kept and MoveOut has not moved. No lock is held.
func (l *Link) Free(t ring.Token) {
	l.in.mu.Lock()
	l.in.rx.Free(t)
	l.in.holders.remove(t)
	last := l.in.over && l.in.holders.count == 0
	due := !l.in.over && l.in.publish(&l.given)
	l.in.mu.Unlock()
	if last {
		l.freeRing()
	} else if due {
		l.sendCredit()
	}
}

// freeRing closes the ring when the last piece of it is free.
func (l *Link) freeRing() {
	if l.in.mr != nil {
		l.in.mr.Close()
	}
	l.memory.free()
}
