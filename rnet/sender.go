package rnet

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/seed-b9b531af/ramjet/ring"
	"github.com/seed-b9b531af/ramjet/verbs"
)

// The way of a byte out:
//
//  1. Conn.Write takes the stream's write lock and cuts p into pieces of at
//     most s.piece; send takes txMu for each.
//  2. The piece needs a slot (a receive that the peer posted), room in the
//     peer's ring, room in our SQ, and the stream's window. What has come
//     back of these was noted by the leader in atomics and is looked at only
//     when what we knew is used up.
//  3. Header and piece are written to their place in the peer's ring by one
//     WRITE_WITH_IMM: inline, if the device places inline data at once,
//     otherwise by way of the stage. Devices without immediates: notice.go.
//  4. If something is missing, the writer queues up in txWait and waits; the
//     leader wakes it when credit has come.
type sender struct {
	txMu    sync.Mutex // guards all of sender but the atomics
	tx      ring.Tx
	txSlots ring.SendSlots
	txDead  bool // resources are gone: post nothing
	sqUsed  int  // WRs in the SQ that no completion has covered yet
	sqSince int  // WRs since the last signaled one
	told    txTold

	sqLen   int      // WRs that the SQ has for frames
	piece   int      // most payload of a frame
	inline  int      // payload and header up to this are inline
	short   int      // and up to this go in a SEND, past the ring; see notices
	onWire  bool     // what is posted is on its way when PostSend returns, not there
	notices *notices // nil on a device with immediates
	signal  bool     // the next frame's completion is wanted
	stage   stage
	heads   *verbs.MR    // headers of frames whose payload is sent from where it lies
	outs    []*outBuffer // given up by their Conns, to be freed when they are sent

	sqPosted   uint64 // WRs posted so far
	wr         [1]verbs.SendWR
	head       [frameHeaderLen]byte
	winScratch [8]byte // payload of a WINDOW frame
	vec        [2][]byte
	sge        [2]verbs.SGE

	txWait   connQueue // writers that wait for a slot, room or SQ
	turns    int       // writers that were woken from it and have not come back yet
	promised int       // bytes of the ring that they will take
	ctlQueue connQueue // streams with control frames to send
	sentWait connQueue // who waits for completions
	lastFin  sendMark  // of the last end of a stream
	refusals []uint32  // streams that the peer opened and we do not take, to be reset
	ctlPing  bool
	ctlAway  bool

	probing // guarded by txMu, but for its atomics

	framesOut, bytesOut uint64

	// txBlocked says that something waits for credit. It is set under txMu
	// before the credits are looked at again; the leader stores credits
	// before it looks at txBlocked: one of the two sees the other.
	txBlocked atomic.Bool

	// sentBlocked says the same of completions, for sentWait.
	sentBlocked atomic.Bool

	// What has come back, written by the leader only.
	peerReleased atomic.Uint64 // bytes that the peer has released in its ring
	peerPosted   atomic.Uint64 // receives that the peer has posted for data
	sqDone       atomic.Uint64 // WRs that send completions have covered
	stageDone    atomic.Uint64 // bytes of stage that they have covered
	sqTaken      uint64        // of sqDone, taken off sqUsed
}

// txTold is what the peer was last told about our receive ring.
type txTold struct {
	released uint64
	posted   uint64
}

func (s *session) initSender() error {
	if err := s.tx.Init(s.peer.ringSize); err != nil {
		return err
	}
	if err := s.txSlots.Init(int(s.peer.slots)); err != nil {
		return err
	}
	s.peerPosted.Store(uint64(s.peer.slots))
	s.told.posted = uint64(s.cfg.slots)
	s.inline = s.qp.Attr().Cap.MaxInline
	if s.inline >= s.piece+frameHeaderLen {
		return nil
	}
	return s.stage.alloc(s.pd, s.peer.ringSize)
}

// minPiece is the least payload worth a frame when a larger one was wanted:
// waiting for more room costs less than many small frames.
const minPiece = 2 << 10

// room returns how much of a payload of want bytes can be sent now, -1 if
// nothing. txMu is held.
func (s *session) room(want int) int {
	s.uncork()
	n := s.roomKnown(want)
	if n >= 0 {
		return n
	}
	if !s.takeCredit() {
		return -1
	}
	return s.roomKnown(want)
}

func (s *session) roomKnown(want int) int {
	if s.txSlots.Avail() == 0 || s.sqUsed+s.wrsPerMessage() > s.sqLen {
		return -1
	}
	least := min(want, minPiece)
	if staged := s.stage.room() - frameHeaderLen; staged < want {
		if want = staged; want < least {
			return -1
		}
	}
	if tail := s.tx.Tail() - frameHeaderLen; tail >= least {
		return min(want, tail)
	}
	if room := s.tx.Room() - frameHeaderLen; room >= least {
		return min(want, room)
	}
	return -1
}

// takeCredit takes over what the leader has noted. It returns false after a
// lie, which ends the session.
func (s *session) takeCredit() bool {
	if done := s.sqDone.Load(); done != s.sqTaken {
		s.sqUsed -= int(done - s.sqTaken)
		s.sqTaken = done
		s.stage.freed = s.stageDone.Load()
	}
	err := s.tx.Credit(s.peerReleased.Load())
	if err == nil {
		err = s.txSlots.Credit(s.peerPosted.Load())
	}
	if err != nil {
		go s.fail(fmt.Errorf("rnet: peer gave credit that it does not have: %w", err))
		return false
	}
	return true
}

// source says where a payload lies: at off of mr, or in ordinary memory if mr
// is nil.
type source struct {
	mr  *verbs.MR
	off int
}

// post sends one frame. txMu is held and room has been asked.
func (s *session) post(h frameHeader, payload []byte, from source) error {
	if s.txDead {
		return syscall.ECONNRESET
	}
	h.length = uint32(len(payload))
	h.credit, h.slots = s.piggyback()
	h.put(&s.head)
	return s.postMessage(payload, from)
}

// postMessage posts the message that begins with s.head.
func (s *session) postMessage(payload []byte, from source) error {
	n := frameHeaderLen + len(payload)
	wr := &s.wr[0]
	if n <= s.short {
		wr.Opcode = verbs.OpSend
	} else {
		off, ok := s.tx.Reserve(n)
		if !ok {
			return fmt.Errorf("rnet: no room for %d bytes after asking", n)
		}
		wr.Opcode, wr.Imm = verbs.OpWriteWithImm, immFrames
		wr.RemoteAddr, wr.RKey = s.peer.ringAddr+uint64(off), s.peer.ringKey
	}
	s.txSlots.Take()
	switch {
	case from.mr != nil:
		s.gather(payload, from)
	case n <= s.inline:
		s.vec[0], s.vec[1] = s.head[:], payload
		wr.Inline, wr.SGL, wr.Flags = s.vec[:], nil, verbs.SendInline
	default:
		wr.Inline, wr.SGL, wr.Flags = nil, s.stage.put(s.head[:], payload, &s.sge), 0
	}
	if s.signal {
		wr.Flags |= verbs.SendSignaled
		s.signal = false
	}
	return s.postWR()
}

// postWR hands s.wr to the QP and accounts for it.
func (s *session) postWR() error {
	wr := &s.wr[0]
	split := s.notices != nil && wr.Opcode != verbs.OpSend
	count := 1
	if split && wr.Len() > 0 {
		count = 2
	}
	s.sqUsed += count
	s.sqSince += count
	s.sqPosted += uint64(count)
	if s.sqSince >= s.sqLen/4 || s.stage.due() || wr.Flags&verbs.SendSignaled != 0 {
		wr.Flags |= verbs.SendSignaled
		wr.ID = s.stage.since<<32 | uint64(s.sqSince)
		s.sqSince, s.stage.since = 0, 0
	}
	wrs := s.wr[:]
	if split {
		wrs = s.notices.split(wr)
	}
	_, err := s.qp.PostSend(wrs)
	if err != nil {
		s.txDead = true // a message is missing: the peer would misplace what follows
	}
	s.vec[1] = nil
	return err
}

// piggyback returns the credit that goes with a frame.
func (s *session) piggyback() (credit uint32, slots uint16) {
	s.told.released = s.released.Load()
	s.told.posted = s.posted.Load()
	return uint32(s.told.released), uint16(s.told.posted)
}

// sendCredit tells the peer what was released if that is worth a message of
// its own. It needs neither slot nor ring space.
func (s *session) sendCredit() {
	s.txMu.Lock()
	defer s.txMu.Unlock()
	released, posted := s.released.Load(), s.posted.Load()
	if released-s.told.released < uint64(s.cfg.ringSize)/4 && posted-s.told.posted < uint64(s.cfg.slots)/4 {
		return
	}
	if s.txDead {
		return
	}
	s.stats.creditsSent.Add(1)
	if err := s.postCredit(released, posted, 0); err != nil {
		go s.fail(fmt.Errorf("rnet: send credit: %w", err))
	}
}

// postCredit posts a credit message. txMu is held.
func (s *session) postCredit(released, posted uint64, flags verbs.SendFlags) error {
	s.told = txTold{released: released, posted: posted}
	wr := &s.wr[0]
	wr.Opcode, wr.Imm = verbs.OpWriteWithImm, creditImm(released, s.cfg.ringSize, uint16(posted))
	wr.RemoteAddr, wr.RKey = s.peer.ringAddr, s.peer.ringKey
	wr.Inline, wr.SGL, wr.Flags = nil, nil, flags
	return s.postWR()
}

// The control frames that a stream can have queued. They are idempotent bits:
// queueing needs no memory, and the queue cannot grow beyond the streams.
const (
	ctlOpen uint8 = 1 << iota
	ctlWindow
	ctlFin
	ctlReset
)

// control queues control frames of c and sends what can be sent.
func (s *session) control(c *Conn, bits uint8) {
	s.txMu.Lock()
	c.ctl |= bits
	s.ctlQueue.push(c, ctlLink)
	s.flushControl()
	s.txMu.Unlock()
}

// forgetControl takes back what was to be said about a stream that the peer
// has ended.
func (s *session) forgetControl(c *Conn) {
	s.txMu.Lock()
	c.ctl = 0
	s.ctlQueue.remove(c, ctlLink)
	s.txMu.Unlock()
}

// maxRefusals bounds what a peer that opens too many streams, and takes no
// answer, can make us remember.
const maxRefusals = 1024

// refuse queues a reset for a stream that was not taken. An error means that
// the peer has too many of them.
func (s *session) refuse(id uint32) error {
	s.txMu.Lock()
	defer s.txMu.Unlock()
	if len(s.refusals) >= maxRefusals {
		return fmt.Errorf("%w: %d streams opened beyond the limit, and no answer taken", errProtocol, len(s.refusals))
	}
	s.refusals = append(s.refusals, id)
	s.flushControl()
	return nil
}

// sessionControl queues a ping or a go-away.
func (s *session) sessionControl(ping, away bool) {
	s.txMu.Lock()
	s.ctlPing = s.ctlPing || ping
	s.ctlAway = s.ctlAway || away
	s.flushControl()
	s.txMu.Unlock()
}

// flushControl sends queued control frames as far as there is room, and
// reports whether all are gone. txMu is held.
func (s *session) flushControl() bool {
	for s.ctlAway || s.ctlPing || len(s.refusals) > 0 || !s.ctlQueue.empty() {
		if s.txDead {
			return false
		}
		if s.room(8) < 8 {
			s.txBlocked.Store(true)
			if s.room(8) < 8 { // see txBlocked
				return false
			}
		}
		var err error
		switch {
		case s.ctlAway:
			s.ctlAway = false
			err = s.post(frameHeader{kind: frameGoAway}, nil, source{})
		case s.ctlPing:
			s.ctlPing = false
			err = s.post(frameHeader{kind: framePing}, nil, source{})
		case len(s.refusals) > 0:
			id := s.refusals[0]
			s.refusals = s.refusals[1:]
			err = s.post(frameHeader{stream: id, kind: frameReset}, nil, source{})
		default:
			err = s.postControl(s.ctlQueue.first())
		}
		if err != nil {
			go s.fail(fmt.Errorf("rnet: send control frame: %w", err))
			return false
		}
	}
	return true
}

// postControl sends one control frame of c and takes c off the queue when it
// was the last. The order is that of a stream's life.
func (s *session) postControl(c *Conn) (err error) {
	h := frameHeader{stream: c.id}
	switch {
	case c.ctl&ctlOpen != 0:
		c.ctl &^= ctlOpen
		h.kind = frameOpen
		err = s.post(h, nil, source{})
	case c.ctl&ctlReset != 0:
		c.ctl = 0
		if !c.ended() {
			h.kind = frameReset
			err = s.postEnd(c, h, endReset)
		}
	case c.ctl&ctlWindow != 0:
		c.ctl &^= ctlWindow
		if !c.ended() {
			h.kind = frameWindow
			s.stats.windowsSent.Add(1)
			err = s.post(h, c.windowPayload(), source{})
		}
	case c.ctl&ctlFin != 0:
		c.ctl &^= ctlFin
		bits := endFinSent
		h.kind = frameFin
		if c.closed.Load() {
			bits |= endCloseSent
			h.flags = flagClosed
		}
		if !c.ended() && c.ends.Load()&bits != bits { // a Close after CloseWrite has more to say
			err = s.postEnd(c, h, bits)
		}
	}
	if c.ctl == 0 {
		s.ctlQueue.remove(c, ctlLink)
	}
	return err
}

// postEnd sends a frame that ends c. The end is noted before it is posted: the
// peer may answer, and use the id again, at once. But the session may end with
// its last stream only after that.
func (s *session) postEnd(c *Conn, h frameHeader, bits uint32) error {
	last := c.note(bits)
	s.signal = s.onWire
	err := s.post(h, nil, source{})
	if err == nil {
		err = s.markEnd()
	}
	c.finAt = s.lastFin
	if bits&endCloseSent != 0 {
		c.wakeWriter() // a lingering Close
	}
	if last {
		s.left()
	}
	return err
}

// sendResult says how send ended if nothing was sent.
type sendResult uint8

const (
	sendOK     sendResult = iota
	sendWindow            // the stream's window is used up
	sendRoom              // the session's credit is
	sendFailed            // err tells
)

// send sends as much of p as one frame holds. queued says that c is woken
// from txWait, so that it need not stand in line again.
func (s *session) send(c *Conn, p []byte, from source, queued bool) (int, sendResult, error) {
	s.txMu.Lock()
	defer s.txMu.Unlock()
	turn := s.endTurn(c)
	if err := c.sendErr; err != nil {
		s.passOn(c, queued)
		return 0, sendFailed, err
	}
	want := min(len(p), s.piece)
	if avail := c.window.Avail(); avail < want {
		if err := c.window.Grant(c.granted.Load()); err != nil {
			go s.fail(fmt.Errorf("rnet: peer opened the window too far: %w", err))
			return 0, sendFailed, syscall.ECONNRESET
		}
		if want = min(want, c.window.Avail()); want == 0 {
			s.passOn(c, queued)
			return 0, sendWindow, nil
		}
	}
	if turn && s.corked && want == len(p) && s.flushControl() && s.gatherFrame(c, p) {
		return want, sendOK, nil // tellUnblocked wakes the next
	}
	if !s.txBlocked.Load() || s.mayBarge(queued) {
		if n := s.room(want); n > 0 {
			return s.sendFrame(c, p[:n], from)
		}
	}
	c.wants = want
	if turn {
		s.txWait.pushFirst(c, txLink)
	} else {
		s.txWait.push(c, txLink)
	}
	s.txBlocked.Store(true)
	if s.txWait.first() == c { // see txBlocked
		if n := s.room(want); n > 0 {
			s.txWait.remove(c, txLink)
			return s.sendFrame(c, p[:n], from)
		}
	}
	s.stats.creditStalls.Add(1)
	return 0, sendRoom, nil
}

// mayBarge reports whether a writer may send although something is blocked:
// control frames go first, then those who stood in line.
func (s *session) mayBarge(queued bool) bool {
	return s.flushControl() && (queued || s.txWait.empty())
}

func (s *session) sendFrame(c *Conn, p []byte, from source) (int, sendResult, error) {
	if err := s.post(frameHeader{stream: c.id, kind: frameData}, p, from); err != nil {
		go s.fail(fmt.Errorf("rnet: send: %w", err))
		return 0, sendFailed, syscall.ECONNRESET
	}
	c.window.Take(len(p))
	s.framesOut++
	s.bytesOut += uint64(len(p))
	if !s.txWait.empty() {
		s.txWait.remove(c, txLink) // woken by something else than its turn
		s.wakeLine()
	}
	return len(p), sendOK, nil
}

// passOn takes a writer out of the line that does not send, and wakes the next
// in its place. txMu is held.
func (s *session) passOn(c *Conn, queued bool) {
	if queued {
		s.txWait.remove(c, txLink)
		s.wakeLine()
	}
}

// leaveLine takes c out of txWait, when it gives up, or makes sure that the
// next in line is woken, when c had been.
func (s *session) leaveLine(c *Conn) {
	s.txMu.Lock()
	s.endTurn(c)
	s.passOn(c, true)
	s.txMu.Unlock()
}

// The most writers that are awake because of their turn. Each that comes back
// makes room for the next. More of them than can send would only go back to the
// line, all for each bit of credit; an event loop has a list of them, and takes
// it as a whole.
const (
	wakeBatch     = 16
	wakeBatchLoop = 128
)

// endTurn notes that c is back, and reports whether it was its turn. txMu is
// held.
func (s *session) endTurn(c *Conn) bool {
	if !c.turn {
		return false
	}
	c.turn = false
	s.turns--
	s.promised -= c.wants + frameHeaderLen
	return true
}

// wakeFirst gives the first in line its turn, if there is room for it beside
// those that have theirs. txMu is held.
func (s *session) wakeFirst() bool {
	c := s.txWait.first()
	if s.room(c.wants) < 0 {
		return false
	}
	need := c.wants + frameHeaderLen
	free := int(s.tx.Size()) - int(s.tx.Sent()-s.tx.Acked())
	if s.turns > 0 && (s.turns >= s.txSlots.Avail() || s.promised+need > free) {
		return false
	}
	s.txWait.pop(txLink)
	c.turn = true
	s.turns++
	s.promised += need
	c.wakeWriter()
	return true
}

// creditCame is called by the leader after it noted credit while something
// was blocked.
func (s *session) creditCame() {
	s.txMu.Lock()
	s.wakeLine()
	s.txMu.Unlock()
}

// wakeLine sends control frames and wakes writers, as far as there is room.
// txMu is held.
func (s *session) wakeLine() {
	if !s.flushControl() {
		return
	}
	batch := wakeBatch
	if s.onLoop() {
		batch = wakeBatchLoop
	}
	for s.turns < batch {
		if s.txWait.empty() {
			s.txBlocked.Store(false)
			return
		}
		if !s.wakeFirst() {
			return
		}
	}
}

// wakeSenders wakes all who wait to send: the session is dead.
func (s *session) wakeSenders() {
	s.txMu.Lock()
	defer s.txMu.Unlock()
	s.txDead = true
	for !s.txWait.empty() {
		s.txWait.pop(txLink).wakeWriter()
	}
	for !s.ctlQueue.empty() {
		c := s.ctlQueue.pop(ctlLink)
		c.ctl = 0
		c.wakeWriter()
	}
	for !s.sentWait.empty() {
		s.sentWait.pop(sentLink).wakeWriter()
	}
}
