//go:build amd64 || arm64

package ibverbs

import (
	"unsafe"

	"github.com/seed-b9b531af/ramjet/verbs/internal/pages"
)

// arena is memory of a queue outside of Go's heap, in which what the library is to read or
// write for the time of a call is laid out. Its user holds the lock of the queue.
type arena struct {
	mem  []byte
	used uintptr
}

// arenaBytes is room for 50 requests or more.
const arenaBytes = 16 << 10

func newArena(size int) (arena, error) {
	mem, err := pages.Map(max(size, arenaBytes), false)
	return arena{mem: mem}, err
}

func (a *arena) free() {
	pages.Unmap(a.mem)
	a.mem = nil
}

// left is how many bytes there are.
func (a *arena) left() int { return len(a.mem) - int(a.used) }

// take takes the next n bytes. There must be as many.
func (a *arena) take(n uintptr) unsafe.Pointer {
	p := unsafe.Pointer(&a.mem[a.used : a.used+n][0])
	a.used += (n + 7) &^ 7
	return p
}

// in takes the room of a T. What is in it is from before.
func in[T any](a *arena) *T {
	var t T
	return (*T)(a.take(unsafe.Sizeof(t)))
}
