package link

import (
	"math"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// bounceBuffer is the memory from which a device sends what is not inline: a ring in
// which a frame lies from the time it is posted until the device has done it,
// which on a network means that the peer's device has it.
type bounceBuffer struct {
	mr    *verbs.MR // nil on a device that takes everything inline
	head  uint64    // bytes taken so far
	freed uint64    // of these, free again
	since uint64    // taken since the last WR with a completion
}

// bounceSize is more than a fast network has under way.
const bounceSize = 512 << 10

// grow gives the bounce buffer the size that fits the peer's ring, or less where memory is short.
// It frees the smallest bounce buffer, which receiveRing.alloc may have made, only when it has a
// larger one: sessions that are set up at the same time, perhaps the other end of this one, need
// memory and objects of the device too.
func (b *bounceBuffer) grow(pd *verbs.PD, ringSize uint32) error {
	least := b.mr
	size := min(bounceSize, ringSize)
	if least != nil && size <= MinRing {
		return nil
	}
	mr, err := allocUpTo(pd, size, verbs.AccessLocalWrite, verbs.MROptions{})
	switch {
	case least == nil:
		b.mr = mr
		return err
	case err != nil:
		return nil // the least will do
	}
	b.mr = mr
	return least.Close()
}

// room returns the longest frame that fits now.
func (b *bounceBuffer) room() int {
	if b.mr == nil {
		return math.MaxInt
	}
	return len(b.mr.Bytes()) - int(b.head-b.freed)
}

// put copies a frame to its place and returns what of sge names it.
func (b *bounceBuffer) put(head, payload []byte, sge *[2]verbs.SGE) []verbs.SGE {
	mem := b.mr.Bytes()
	at := int(b.head) & (len(mem) - 1)
	copy(mem[at:], head) // as a whole: places are aligned to the header's length
	n := copy(mem[at+len(head):], payload)
	sge[0] = b.mr.SGE(at, len(head)+n)
	size := uint64(len(head)+len(payload)+HeaderLen-1) &^ (HeaderLen - 1)
	b.head += size
	b.since += size
	if n == len(payload) {
		return sge[:1]
	}
	copy(mem, payload[n:])
	sge[1] = b.mr.SGE(0, len(payload)-n)
	return sge[:2]
}

// due reports whether a completion is needed to have memory free again in
// time.
func (b *bounceBuffer) due() bool {
	return b.mr != nil && b.since >= uint64(len(b.mr.Bytes())/4)
}
