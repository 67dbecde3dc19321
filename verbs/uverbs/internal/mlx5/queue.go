//go:build amd64 || arm64

package mlx5

import (
	"fmt"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/internal/serial"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
)

// sendQueue is the ring of WQEs of send requests, in basic blocks of 64 bytes.
// A post holds the send lock of the QP, a poll the lock of its CQ; they meet at
// the two counters alone.
type sendQueue struct {
	mem      []byte
	blocks   []block         // the same
	mask     uint32          // blocks less one
	most     int             // requests
	largest  int             // bytes, whole blocks: of a request
	always   verbs.SendFlags // of all requests
	requests []request       // by their first block
	// A request that gives no completion is known to be done when one behind
	// it completes. Where there was none for half of the queue, one is marked:
	// its completion takes a reserved entry of the CQ, and nobody sees it. So a
	// request for which there is no room waits for a completion that comes.
	marks   bool        // there is a reserved entry for this QP
	marking bool        // the request before block marked may not have completed
	marked  uint32      // the block after the last marked request
	silent  int         // requests since the last one that completes
	count   uint32      // free running: requests posted
	posted  serial.Word // free running, blocks: written by who posts, after requests
	done    serial.Word // the same: written by who polls, after it has read requests
	last    uint32      // first block of the request posted last
	fence   bool        // that one changes a key, which the next may use
	scratch [maxSGE*segmentSize + maxInline + 2*blockSize]byte
}

// request is what a completion does not say.
type request struct {
	id uint64
	summary
}

// summary is the rest in one word, for a post stores it at once: how many requests were posted
// before (free running, 32 bits), the blocks of the WQE, 0 where none begins, what the request
// completes as, and whether it gives a completion, without an error too, or is marked.
type summary uint64

const (
	blocksShift = 32
	opcodeShift = 40
	givesOne    = 1 << 48
	isMarked    = 1 << 49
)

func summaryOf(before, blocks uint32, opcode verbs.WCOpcode, is summary) summary {
	return summary(before) | summary(blocks)<<blocksShift | summary(opcode)<<opcodeShift | is
}

func (s summary) before() uint32         { return uint32(s) }
func (s summary) blocks() uint32         { return uint32(s >> blocksShift & 0xff) }
func (s summary) opcode() verbs.WCOpcode { return verbs.WCOpcode(s >> opcodeShift) }
func (s summary) gives() bool            { return s&givesOne != 0 }
func (s summary) marked() bool           { return s&isMarked != 0 }

func newSendQueue(mem []byte, most, perWR int) sendQueue {
	blocks := len(mem) / blockSize
	return sendQueue{mem: mem, blocks: abi.SliceAt[block](mem, 0, blocks), mask: uint32(blocks - 1), most: most, largest: perWR * blockSize, requests: make([]request, blocks)}
}

func (s *sendQueue) reset() {
	s.posted.Store(0)
	s.done.Store(0)
	s.marking, s.silent, s.fence = false, 0, false
}

// room is how many requests may be posted. The blocks are enough for as many of the largest
// size; more than that of smaller ones would overrun a CQ that was sized by the QP, for all
// complete when the QP fails.
func (s *sendQueue) room() int {
	posted, done := s.posted.Load(), s.done.Load()
	if s.marking && int32(done-s.marked) >= 0 {
		s.marking = false
	}
	if posted == done {
		return s.most
	}
	return s.most - int(s.count-s.requests[done&s.mask].before())
}

// block is a basic block of the queue.
type block [blockSize]byte

func (s *sendQueue) block(at uint32) *block { return &s.blocks[at&s.mask] }

// from is the queue from a block to the end.
func (s *sendQueue) from(at uint32) []byte { return s.mem[int(at&s.mask)*blockSize:] }

// outstanding counts the requests that give a completion of which none was polled. Who posts and
// who polls wait for it.
func (s *sendQueue) outstanding() (n int) {
	posted := s.posted.Load()
	// also if the device lets done be within a request
	for at := s.done.Load(); int32(posted-at) > 0; {
		r := &s.requests[at&s.mask]
		if r.gives() {
			n++
		}
		at += max(1, r.blocks())
	}
	return n
}

// completed finds the request whose WQE begins in a block. One that is not
// posted is of the time before the last RESET.
func (s *sendQueue) completed(wc *verbs.WC, index uint16) (wanted bool, err error) {
	done := s.done.Load()
	outstanding := s.posted.Load() - done
	offset := uint32(index - uint16(done))
	if offset >= outstanding {
		return false, nil
	}
	r := &s.requests[(done+offset)&s.mask]
	end := offset + r.blocks()
	if end <= offset || end > outstanding {
		return false, fmt.Errorf("%w: no request begins in block %d", errQueue, index)
	}
	wc.ID, wc.Opcode = r.id, r.opcode()
	s.done.Store(done + end)
	return !r.marked() || wc.Status != verbs.WCSuccess, nil
}

// recvQueue is a ring of receives, each of a power of two of bytes.
type recvQueue struct {
	mem    []byte
	shift  int
	mask   uint32
	most   int
	ids    []uint64
	posted serial.Word // free running: as in sendQueue
	done   serial.Word
}

func newRecvQueue(mem []byte, shift, most int) recvQueue {
	n := len(mem) >> shift
	return recvQueue{mem: mem, shift: shift, mask: uint32(max(n, 1) - 1), most: most, ids: make([]uint64, n)}
}

func (r *recvQueue) reset() {
	r.posted.Store(0)
	r.done.Store(0)
}

func (r *recvQueue) post(wrs []verbs.RecvWR) (n int, err error) {
	at := r.posted.Load()
	room := r.most - int(at-r.done.Load())
	for ; n < len(wrs); n++ {
		if n >= room {
			err = verbs.ErrQueueFull
			break
		}
		slot := r.mem[int((at+uint32(n))&r.mask)<<r.shift:][:1<<r.shift]
		if err = putRecv(slot, &wrs[n]); err != nil {
			break
		}
		r.ids[(at+uint32(n))&r.mask] = wrs[n].ID
	}
	r.posted.Store(at + uint32(n))
	return n, err
}

// putRecv writes a receive, whose list ends with an invalid key unless it fills
// the slot.
func putRecv(slot []byte, wr *verbs.RecvWR) error {
	used := putSGEs(slot, wr.SGL)
	if used < 0 {
		return fmt.Errorf("%w: a receive has %d SGEs and %d bytes at most", verbs.ErrInvalid, len(slot)/segmentSize, maxMessage)
	}
	if rest := slot[used:]; len(rest) > 0 {
		be.PutUint32(rest, 0)
		be.PutUint32(rest[4:], invalidKey)
		be.PutUint64(rest[8:], 0)
	}
	return nil
}

// completed finds the receive of a completion, which is the oldest.
func (r *recvQueue) completed(wc *verbs.WC, index uint16) (wanted bool, err error) {
	done := r.done.Load()
	offset := uint32(index - uint16(done))
	if offset >= r.posted.Load()-done {
		return false, nil
	}
	wc.ID = r.ids[(done+offset)&r.mask]
	r.done.Store(done + offset + 1)
	return true, nil
}
