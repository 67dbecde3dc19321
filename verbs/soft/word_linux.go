package soft

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"
)

// word gives the futex call the plain form of an atomic word.
func word(w *atomic.Uint32) *uint32 { return (*uint32)(unsafe.Pointer(w)) }

// compareSwap stores swap if the word is compare, and returns what it was.
func compareSwap(w *atomic.Uint64, compare, swap uint64) uint64 {
	for {
		old := w.Load()
		if old != compare || w.CompareAndSwap(compare, swap) {
			return old
		}
	}
}

// putNative stores v in the byte order of the machine, as the specification
// has it for the result of an atomic.
func putNative(b []byte, v uint64) { binary.NativeEndian.PutUint64(b, v) }
