package soft

import (
	"slices"
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

// backing says whose memory a mapping shows.
type backing int

const (
	ofNobody backing = iota // the mapping's alone: anonymous memory
	ofMemfd                 // of a memfd of ours, which nobody uses any more
	ofAPeer                 // of a memfd of a peer
)

// discard frees the memory of a mapping that cannot be taken back. That of a
// memfd stays, whatever happens to the mappings of it, until a hole is punched;
// that of a peer is the peer's.
func (r addressRange) discard(of backing) {
	switch of {
	case ofNobody:
		_ = unix.Madvise(r.bytes(), unix.MADV_DONTNEED)
	case ofMemfd:
		_ = discard(r.bytes())
	}
}

// mappingsLeft are mappings that the kernel could not take back yet.
type mappingsLeft struct {
	mu     sync.Mutex
	ranges []addressRange // the oldest first; guarded by mu
}

// unmapAtOnce is how many mappings that were left one caller tries to take back.
const unmapAtOnce = 16

var unmapLater mappingsLeft

// unmap takes a mapping back. It cannot fail: the kernel makes one mapping of
// those that lie beside each other, and at its limit of mappings it does not
// cut a piece out of the middle of one. The memory of such a piece is freed,
// and its addresses go when something else is unmapped.
func unmap(mem []byte, of backing) { unmapLater.unmap(mem, of) }

func (m *mappingsLeft) unmap(mem []byte, of backing) {
	left := m.oldest()
	left = slices.DeleteFunc(left, addressRange.unmap)
	if r := rangeOf(mem); !r.unmap() {
		r.discard(of)
		left = append(left, r)
	}
	if len(left) == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ranges = append(m.ranges, left...)
}

// oldest takes some out. The system calls for them are made without the lock,
// which all of the process use.
func (m *mappingsLeft) oldest() []addressRange {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := min(len(m.ranges), unmapAtOnce)
	if n == 0 {
		return nil
	}
	some := slices.Clone(m.ranges[:n])
	m.ranges = slices.Delete(m.ranges, 0, n)
	return some
}

func (m *mappingsLeft) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.ranges)
}
