//go:build amd64 || arm64

package mlx5

import (
	"sync"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
)

// blueFlame is a bfreg to which whole WQEs are written: its two halves one after the other, so
// that what is still on its way to one is not overwritten. QPs share it, and must not mix their
// stores, hence the lock.
//
// The device that gets the stores of a WQE in one piece need not read it from memory; one that does
// not takes the first eight bytes as the doorbell that they are. So the WQE is in the queue, and
// the record says so, before.
type blueFlame struct {
	mu     sync.Mutex
	halves [2][]byte
	next   int // guarded by mu
}

func newBlueFlame(register []byte) *blueFlame {
	half := len(register) / 2
	return &blueFlame{halves: [2][]byte{register[:half:half], register[half:]}}
}

// write writes the basic blocks of a WQE, of which there is one at least, or rings if there
// is no room for them.
func (f *blueFlame) write(wqe []byte) {
	if len(wqe) > len(f.halves[0]) {
		f.ring(*abi.ViewAt[uint64](wqe, 0))
		return
	}
	f.mu.Lock()
	storeBlueFlame(&f.nextHalf()[0], &wqe[0], len(wqe)/blockSize)
	f.mu.Unlock()
}

// ring writes the first eight bytes of a WQE, which the device reads from memory.
func (f *blueFlame) ring(value uint64) {
	f.mu.Lock()
	storeCombined(abi.ViewAt[uint64](f.nextHalf(), 0), value)
	f.mu.Unlock()
}

// nextHalf returns the half to write to, and has the other come next. The caller holds mu.
func (f *blueFlame) nextHalf() []byte {
	half := f.halves[f.next]
	f.next ^= 1
	return half
}
