package uverbs

import (
	"sync/atomic"
	"unsafe"
)

// Everything that turns bytes into typed memory, and back, is in this file.
// The views are bounds checked: an offset that does not fit panics as slicing
// does, and never reaches other memory.

// bytesOf is the memory of a structure without pointers.
func bytesOf[T any](v *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))
}

// viewAt is the structure at off. mem is mapped memory, so that offsets which
// are multiples of T's alignment are aligned.
func viewAt[T any](mem []byte, off int) *T {
	var t T
	return (*T)(unsafe.Pointer(unsafe.SliceData(mem[off : off+int(unsafe.Sizeof(t))])))
}

// sliceAt is the n structures from off on.
func sliceAt[T any](mem []byte, off, n int) []T {
	var t T
	b := mem[off : off+n*int(unsafe.Sizeof(t))]
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n)
}

// wordAt is the 32-bit word at off, which others may write.
func wordAt(mem []byte, off int) *atomic.Uint32 {
	return viewAt[atomic.Uint32](mem, off)
}

// sizeOf is the size of a structure.
func sizeOf[T any]() int {
	var t T
	return int(unsafe.Sizeof(t))
}

// addressOf is the address of memory that does not move: mapped memory, and
// the Go heap as it is.
func addressOf(mem []byte) uint64 {
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem))))
}

// littleEndian says which byte of a word comes first on this machine.
var littleEndian = func() bool {
	v := uint16(1)
	return *(*byte)(unsafe.Pointer(&v)) == 1
}()
