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
	ahead   ringPages
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

	qpClosed bool // no WR is left that reads memory of ours

	sqPosted   uint64 // WRs posted so far
	wr         [1]verbs.SendWR
	head       [frameHeaderLen]byte
	winScratch [8]byte // payload of a WINDOW frame
	addrsFrame [addrsLen]byte
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
	ctlShare bool

	sharedSender
	ctlAddrs []slotAddrs // addresses that the peer was not told yet

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
	if err := s.initShare(); err != nil {
		return err
	}
	s.initAhead()
	if err := s.txSlots.Init(int(s.peer.slots)); err != nil {
		return err
	}
	s.peerPosted.Store(uint64(s.peer.slots))
	s.told.posted = uint64(s.cfg.slots)
	s.inline = s.qp.Attr().Cap.MaxInline
	if s.inline >= s.piece+frameHeaderLen {
		return nil
	}
	return s.stage.grow(s.pd, s.peer.ringSize)
}

// minPiece is the least payload worth a frame when a larger one was wanted:
// waiting for more room costs less than many small frames.
const minPiece = 2 << 10

// room returns how much of a payload of want bytes can be sent now, -1 if
// nothing. txMu is held.
func (s *session) room(want int) int {
	s.uncork()
	s.rewind()
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
		if err := s.reach(off + uint32(n)); err != nil {
			return err
		}
		wr.Opcode, wr.Imm = verbs.OpWriteWithImm, s.restarts()
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
