//go:build !race

package release

import (
	"sync/atomic"
	"unsafe"
)

// Store stores v. On amd64 each store is a release store (Intel SDM, volume 3, 10.2.2), and
// the compiler moves none over an atomic operation or a call; an atomic store is an exchange,
// which costs 20 cycles. Locked instructions, so Lock and Unlock of a mutex, are fences.
func Store(w *atomic.Uint64, v uint64) { *(*uint64)(unsafe.Pointer(w)) = v }

// Store32 stores v.
func Store32(w *atomic.Uint32, v uint32) { *(*uint32)(unsafe.Pointer(w)) = v }
