package siw

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
)

var errQueue = errors.New("uverbs: the kernel's siw driver offers an impossible queue")

// maxQueue bounds the elements of a queue; the driver of the kernel allows
// 3276800 completions (SIW_MAX_CQE), rounded up to a power of two.
const maxQueue = 4 << 20

// ring is a queue of requests that the kernel's siw driver and this process
// share: a power of two of elements, each with its own sign of whose it is.
//
//	word            written by
//	all of an       us while its word is not valid, the word last
//	  element
//	the word        the kernel, when it has taken the request: 0
//
// There are no indexes in memory. Both sides count for themselves.
type ring struct {
	mem  []byte
	size int    // of an element
	mask uint32 // number of elements less one
	next uint32 // free running: the next to fill
}

// mapRing maps n elements.
func mapRing(mem driver.Memory, key uint64, n uint32, size int) (ring, error) {
	if n == 0 || n&(n-1) != 0 || n > maxQueue {
		return ring{}, fmt.Errorf("%w: %d elements", errQueue, n)
	}
	b, err := mem.Map(key, int(n)*size, driver.MayRead|driver.MayWrite)
	if err != nil {
		return ring{}, err
	}
	return ring{mem: b, size: size, mask: n - 1}, nil
}

// element is the memory of element i, which may be any number.
func (r *ring) element(i uint32) []byte {
	off := int(i&r.mask) * r.size
	return r.mem[off : off+r.size]
}

func (r *ring) word(i uint32) *atomic.Uint32 { return abi.WordAt(r.element(i), offsetWord) }

// free reports whether the next element is ours to fill.
func (r *ring) free() bool { return !isValid(r.word(r.next).Load()) }

// push hands the next element to the kernel.
func (r *ring) push(word uint32) {
	r.word(r.next).Store(word)
	r.next++
}

// takeBack frees the elements that the kernel has not taken and never will,
// and returns the ids of their requests, oldest first.
func (r *ring) takeBack() (ids []uint64) {
	if r.mem == nil {
		return nil
	}
	// The oldest that can be there is that of the last round.
	for i := r.next - r.mask - 1; i != r.next; i++ {
		if isValid(r.word(i).Load()) {
			ids = append(ids, *abi.ViewAt[uint64](r.element(i), offsetID))
			r.word(i).Store(0)
		}
	}
	return ids
}
