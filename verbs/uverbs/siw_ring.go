package uverbs

import (
	"errors"
	"fmt"
	"sync/atomic"
)

var errSiwQueue = errors.New("uverbs: the kernel's siw driver offers an impossible queue")

// siwMaxQueue bounds the elements of a queue; the driver of the kernel allows
// 3276800 completions (SIW_MAX_CQE), rounded up to a power of two.
const siwMaxQueue = 4 << 20

// siwRing is a queue of requests that the kernel's siw driver and this process
// share: a power of two of elements, each with its own sign of whose it is.
//
//	word            written by
//	all of an       us while its word is not valid, the word last
//	  element
//	the word        the kernel, when it has taken the request: 0
//
// There are no indexes in memory. Both sides count for themselves.
type siwRing struct {
	mem  []byte
	size int    // of an element
	mask uint32 // number of elements less one
	next uint32 // free running: the next to fill
}

// mapSiwRing maps n elements.
func mapSiwRing(mem memory, key uint64, n uint32, size int) (siwRing, error) {
	if n == 0 || n&(n-1) != 0 || n > siwMaxQueue {
		return siwRing{}, fmt.Errorf("%w: %d elements", errSiwQueue, n)
	}
	b, err := mem.mmap(key, int(n)*size, mayRead|mayWrite)
	if err != nil {
		return siwRing{}, err
	}
	return siwRing{mem: b, size: size, mask: n - 1}, nil
}

// element is the memory of element i, which may be any number.
func (r *siwRing) element(i uint32) []byte {
	off := int(i&r.mask) * r.size
	return r.mem[off : off+r.size]
}

func (r *siwRing) word(i uint32) *atomic.Uint32 { return wordAt(r.element(i), siwOffsetWord) }

// free reports whether the next element is ours to fill.
func (r *siwRing) free() bool { return !siwIsValid(r.word(r.next).Load()) }

// push hands the next element to the kernel.
func (r *siwRing) push(word uint32) {
	r.word(r.next).Store(word)
	r.next++
}

// takeBack frees the elements that the kernel has not taken and never will,
// and returns the ids of their requests, oldest first.
func (r *siwRing) takeBack() (ids []uint64) {
	if r.mem == nil {
		return nil
	}
	// The oldest that can be there is that of the last round.
	for i := r.next - r.mask - 1; i != r.next; i++ {
		if siwIsValid(r.word(i).Load()) {
			ids = append(ids, *viewAt[uint64](r.element(i), siwOffsetID))
			r.word(i).Store(0)
		}
	}
	return ids
}
