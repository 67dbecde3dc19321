package link

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/seed-b9b531af/ramjet/ring"
	"github.com/seed-b9b531af/ramjet/verbs"
)

// sender is the half of a link that sends. The send lock guards all but the atomics.
type sender struct {
	sendMu  *sync.Mutex // the send lock
	stopped bool        // nothing can be posted any more

	tx       ring.Tx
	txSlots  ring.SendSlots
	remote   remoteRing
	bounce   bounceBuffer
	short    int       // payload and header up to this go in a SEND, past the ring; see emulation
	heads    *verbs.MR // headers of frames that are sent from a Buffer
	buffers  []*Buffer // discarded, to be freed when they are sent
	qpClosed bool      // no request is left that reads memory of ours
	frames   []byte    // gathered frames

	requests  uint64 // WRs posted so far
	completed uint64 // of these, what is not in inQueue any more
	inQueue   int    // WRs in the SQ that no completion has covered yet
	unasked   int    // WRs since the last one with a completion
	marked    bool   // the next frame's completion is wanted
	told      told
	probing

	payloadOut  uint64 // payload bytes sent
	creditsSent uint64

	// What the present request is made of.
	wr   [1]verbs.SendWR
	head [HeaderLen]byte
	vec  [2][]byte
	sge  [2]verbs.SGE

	// What has come back. The owner of the poll lock stores it.
	peerReleased atomic.Uint64 // bytes that the peer has released in its ring
	peerPosted   atomic.Uint64 // receives that the peer has posted for data
	done         atomic.Uint64 // WRs that completions have covered
	bounceDone   atomic.Uint64 // bytes of the bounce buffer that they have covered
}

// told is what the peer was last told about our receive ring.
type told struct{ released, posted uint64 }

// MinPiece is the least payload worth a frame when a larger one was wanted:
// waiting for more room costs less than many small frames.
const MinPiece = 2 << 10

// Room returns how much of a payload of want bytes can be sent now, -1 if
// nothing. What was gathered goes first.
func (l *Link) Room(want int) int {
	l.Flush()
	l.rewind()
	n := l.roomKnown(want)
	if n >= 0 {
		return n
	}
	if !l.takeCredit() {
		return -1
	}
	return l.roomKnown(want)
}

func (l *Link) roomKnown(want int) int {
	if l.txSlots.Avail() == 0 || l.inQueue+l.has.requestsPerMessage() > l.has.sqLen {
		return -1
	}
	least := min(want, MinPiece)
	if room := l.bounce.room() - HeaderLen; room < want {
		if want = room; want < least {
			return -1
		}
	}
	if tail := l.tx.Tail() - HeaderLen; tail >= least {
		return min(want, tail)
	}
	if room := l.tx.Room() - HeaderLen; room >= least {
		return min(want, room)
	}
	return -1
}

// Unused returns how many messages and how many bytes the peer's ring takes, as far as
// is known.
func (l *Link) Unused() (messages, bytes int) {
	return l.txSlots.Avail(), int(l.tx.Size()) - int(l.tx.Sent()-l.tx.Acked())
}

// takeCredit takes over what Poll has noted. It returns false if the peer gave back more
// than it had, which ends the link.
func (l *Link) takeCredit() bool {
	if done := l.done.Load(); done != l.completed {
		l.inQueue -= int(done - l.completed)
		l.completed = done
		l.bounce.freed = l.bounceDone.Load()
	}
	err := l.tx.Credit(l.peerReleased.Load())
	if err == nil {
		err = l.txSlots.Credit(l.peerPosted.Load())
	}
	if err != nil {
		go l.user.Fail(fmt.Errorf("rnet: peer gave credit that it does not have: %w", err))
		return false
	}
	return true
}

// Send sends one frame, for whose payload Room has been asked.
func (l *Link) Send(h Header, payload []byte) error { return l.send(h, payload, piece{}) }

// Track says that somebody will wait for the arrival of the next frame that is sent.
func (l *Link) Track() { l.marked = l.has.onWire }

// Tracked returns the mark that is reached when the peer's device has that frame.
func (l *Link) Tracked() (m Mark, err error) {
	m = l.Mark()
	if l.has.probes && l.has.emulation != nil {
		m.Probes, err = l.probe()
	}
	return m, err
}

// piece says where a payload lies: at off of mr, or in ordinary memory if mr
// is nil.
type piece struct {
	mr  *verbs.MR
	off int
}

func (l *Link) send(h Header, payload []byte, from piece) error {
	if l.stopped {
		return syscall.ECONNRESET
	}
	l.putHead(h, len(payload))
	return l.postMessage(payload, from)
}

// putHead makes head that of a frame, with the credit that goes with it.
func (l *Link) putHead(h Header, length int) {
	l.told = told{released: l.given.released.Load(), posted: l.given.posted.Load()}
	w := wireHeader{Header: h, slots: uint16(l.told.posted), length: uint32(length), credit: uint32(l.told.released)}
	w.put(&l.head)
	l.payloadOut += uint64(length)
}

// postMessage posts the message that begins with head.
func (l *Link) postMessage(payload []byte, from piece) error {
	n := HeaderLen + len(payload)
	wr := &l.wr[0]
	if n <= l.short {
		wr.Opcode = verbs.OpSend
	} else {
		off, ok := l.tx.Reserve(n)
		if !ok {
			return fmt.Errorf("rnet: no room for %d bytes after asking", n)
		}
		if err := l.remote.reach(off + uint32(n)); err != nil {
			l.stopped = true // as post
			return err
		}
		wr.Opcode, wr.Imm = verbs.OpWriteWithImm, l.remote.restarts()
		wr.RemoteAddr, wr.RKey = l.peer.RingAddr+uint64(off), l.peer.RingKey
	}
	l.txSlots.Take()
	switch {
	case from.mr != nil:
		l.gather(payload, from)
	case n <= l.has.inline:
		l.vec[0], l.vec[1] = l.head[:], payload
		wr.Inline, wr.SGL, wr.Flags = l.vec[:], nil, verbs.SendInline
	default:
		wr.Inline, wr.SGL, wr.Flags = nil, l.bounce.put(l.head[:], payload, &l.sge), 0
	}
	if l.marked {
		wr.Flags |= verbs.SendSignaled
		l.marked = false
	}
	return l.post()
}

// post hands wr to the QP and accounts for it.
func (l *Link) post() error {
	wr := &l.wr[0]
	split := l.has.emulation != nil && wr.Opcode != verbs.OpSend
	count := 1
	if split && wr.Len() > 0 {
		count = 2
	}
	l.inQueue += count
	l.unasked += count
	l.requests += uint64(count)
	if l.unasked >= l.has.sqLen/4 || l.bounce.due() || wr.Flags&verbs.SendSignaled != 0 {
		wr.Flags |= verbs.SendSignaled
		wr.ID = l.bounce.since<<32 | uint64(l.unasked)
		l.unasked, l.bounce.since = 0, 0
	}
	wrs := l.wr[:]
	if split {
		wrs = l.has.emulation.split(wr)
	}
	_, err := l.qp.PostSend(wrs)
	if err != nil {
		l.stopped = true // a message is missing: the peer would misplace what follows
	}
	l.vec[1] = nil
	return err
}

// sendCredit tells the peer what was released and posted, if that is worth a message
// of its own. It needs neither slot nor ring space. The send lock is not held.
func (l *Link) sendCredit() {
	l.sendMu.Lock()
	defer l.sendMu.Unlock()
	released, posted := l.given.released.Load(), l.given.posted.Load()
	if released-l.told.released < uint64(l.in.size)/4 && posted-l.told.posted < uint64(l.has.slots)/4 {
		return
	}
	if l.stopped {
		return
	}
	l.creditsSent++
	if err := l.postCredit(released, posted, 0); err != nil {
		go l.user.Fail(fmt.Errorf("rnet: send credit: %w", err))
	}
}

func (l *Link) postCredit(released, posted uint64, flags verbs.SendFlags) error {
	l.told = told{released: released, posted: posted}
	wr := &l.wr[0]
	wr.Opcode, wr.Imm = verbs.OpWriteWithImm, creditImm(released, l.in.size, uint16(posted))
	wr.RemoteAddr, wr.RKey = l.peer.RingAddr, l.peer.RingKey
	wr.Inline, wr.SGL, wr.Flags = nil, nil, flags
	return l.post()
}

// Stop lets nothing be sent any more.
func (l *Link) Stop() { l.stopped = true }

// Stopped reports whether nothing can be sent any more.
func (l *Link) Stopped() bool { return l.stopped }

// Greet sends h, a frame without payload, and a credit message that says nothing new:
// what the device puts off until the first use of the peer's memory happens then.
// When the mark is reached it has.
func (l *Link) Greet(h Header) (Mark, error) {
	if err := l.Send(h, nil); err != nil { // needs the peer's memory
		return Mark{}, err
	}
	err := l.postCredit(l.given.released.Load(), l.given.posted.Load(), verbs.SendSignaled)
	if l.has.emulation != nil && l.peer.Short {
		l.short = shortMessage
	}
	return l.Mark(), err
}

// Mark is a place in what a link sends: it is reached when the device has done so many
// requests, and so many probes have come back.
type Mark struct{ Requests, Probes uint64 }

// Mark returns the place behind all that was posted.
func (l *Link) Mark() Mark { return Mark{Requests: l.requests} }

// Reached reports whether the device has come to a place. Anybody may ask.
func (l *Link) Reached(m Mark) bool {
	return l.done.Load() >= m.Requests && l.probesDone.Load() >= m.Probes
}
