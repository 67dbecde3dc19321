package rnet

import (
	"math"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// stage is the memory from which a device sends what is not inline: a ring in
// which a frame lies from the time it is posted until the device has done it,
// which on a network means that the peer's device has it.
type stage struct {
	mr    *verbs.MR // nil on a device that takes everything inline
	head  uint64    // bytes taken so far
	freed uint64    // of these, free again
	since uint64    // taken since the last WR with a completion
}

// stageSize is more than a fast network has under way.
const stageSize = 512 << 10

// grow gives the stage the size that the peer's ring is worth, or what there is.
// It lets go of the least stage, which it has from allocRing if that knew that
// there was to be one, when it has a larger one: sessions that are set up at the
// same time, the other end of this one perhaps, take memory and the device's
// objects too.
func (st *stage) grow(pd *verbs.PD, ringSize uint32) error {
	least := st.mr
	size := min(stageSize, ringSize)
	if least != nil && size <= minRingSize {
		return nil
	}
	mr, err := allocUpTo(pd, size, verbs.AccessLocalWrite, verbs.MROptions{})
	switch {
	case least == nil:
		st.mr = mr
		return err
	case err != nil:
		return nil // the least will do
	}
	st.mr = mr
	return least.Close()
}

// room returns the longest frame that fits now.
func (st *stage) room() int {
	if st.mr == nil {
		return math.MaxInt
	}
	return len(st.mr.Bytes()) - int(st.head-st.freed)
}

// put copies a frame to its place and returns what of sge names it.
func (st *stage) put(head, payload []byte, sge *[2]verbs.SGE) []verbs.SGE {
	mem := st.mr.Bytes()
	at := int(st.head) & (len(mem) - 1)
	copy(mem[at:], head) // as a whole: places are aligned to the header's length
	n := copy(mem[at+len(head):], payload)
	sge[0] = st.mr.SGE(at, len(head)+n)
	size := uint64(len(head)+len(payload)+frameHeaderLen-1) &^ (frameHeaderLen - 1)
	st.head += size
	st.since += size
	if n == len(payload) {
		return sge[:1]
	}
	copy(mem, payload[n:])
	sge[1] = st.mr.SGE(0, len(payload)-n)
	return sge[:2]
}

// due reports whether a completion is needed to have memory free again in
// time.
func (st *stage) due() bool {
	return st.mr != nil && st.since >= uint64(len(st.mr.Bytes())/4)
}
