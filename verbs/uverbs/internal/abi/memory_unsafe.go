package abi

import (
	"sync/atomic"
	"unsafe"
)

// Everything that turns bytes into typed memory, and back, is in this file.
// The views are bounds checked: an offset that does not fit panics as slicing
// does, and never reaches other memory.

// BytesOf is the memory of a structure without pointers.
func BytesOf[T any](v *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))
}

// ViewAt is the structure at off. mem is mapped memory, so that offsets which
// are multiples of T's alignment are aligned.
func ViewAt[T any](mem []byte, off int) *T {
	var t T
	return (*T)(unsafe.Pointer(unsafe.SliceData(mem[off : off+int(unsafe.Sizeof(t))])))
}

// SliceAt is the n structures from off on.
func SliceAt[T any](mem []byte, off, n int) []T {
	var t T
	b := mem[off : off+n*int(unsafe.Sizeof(t))]
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n)
}

// WordAt is the 32-bit word at off, which others may write.
func WordAt(mem []byte, off int) *atomic.Uint32 {
	return ViewAt[atomic.Uint32](mem, off)
}

// SizeOf is the size of a structure.
func SizeOf[T any]() int {
	var t T
	return int(unsafe.Sizeof(t))
}

// AddressOf is the address of memory that does not move: mapped memory, and
// the Go heap as it is.
func AddressOf(mem []byte) uint64 {
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem))))
}

// LittleEndian says which byte of a word comes first on this machine.
var LittleEndian = func() bool {
	v := uint16(1)
	return *(*byte)(unsafe.Pointer(&v)) == 1
}()
