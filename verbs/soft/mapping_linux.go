package soft

import (
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// addressRange is a mapping by address: unlike a slice of it, it is what a
// cleanup may keep.
type addressRange struct {
	addr unsafe.Pointer
	size int
}

func rangeOf(mem []byte) addressRange {
	return addressRange{addr: unsafe.Pointer(unsafe.SliceData(mem)), size: len(mem)}
}

func (r addressRange) bytes() []byte { return unsafe.Slice((*byte)(r.addr), r.size) }

func (r addressRange) unmap() bool {
	return refused("munmap") == nil && unix.MunmapPtr(r.addr, uintptr(r.size)) == nil
}

// unmapLater are mappings that the kernel could not take back yet.
var unmapLater struct {
	sync.Mutex
	ranges []addressRange // guarded by the mutex
}

// unmap takes a mapping back. It cannot fail: the kernel makes one mapping of
// those that lie beside each other, and at its limit of mappings it does not
// cut a piece out of the middle of one. The memory of such a piece is freed,
// and its addresses go when something else is unmapped.
func unmap(mem []byte) {
	r := rangeOf(mem)
	done := r.unmap()
	if !done {
		_ = unix.Madvise(mem, unix.MADV_DONTNEED) // memory of a peer goes with the peer
	}
	unmapLater.Lock()
	defer unmapLater.Unlock()
	if !done {
		unmapLater.ranges = append(unmapLater.ranges, r)
		return
	}
	const patience = 16 // refusals that one caller waits for
	refused := 0
	for i := 0; i < len(unmapLater.ranges) && refused < patience; {
		list := unmapLater.ranges
		if !list[i].unmap() {
			refused++
			i++
			continue
		}
		list[i] = list[len(list)-1]
		unmapLater.ranges = list[:len(list)-1]
	}
}
