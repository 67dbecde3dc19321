package sys

import (
	"os"
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// MapFD maps size bytes of fd, shared and not inherited by forked children.
func MapFD(fd int, offset int64, size, prot int) ([]byte, error) {
	return mapMemory(fd, offset, size, prot, unix.MAP_SHARED)
}

// MapAnonymous maps size bytes of zeros of our own.
func MapAnonymous(size int, flags int) ([]byte, error) {
	return mapMemory(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|flags)
}

func mapMemory(fd int, offset int64, size, prot, flags int) ([]byte, error) {
	if err := Refused("mmap"); err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	p, err := unix.MmapPtr(fd, offset, nil, uintptr(size), prot, flags)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	mem := unsafe.Slice((*byte)(p), size)
	err = Refused("madvise MADV_DONTFORK")
	if err == nil {
		err = unix.Madvise(mem, unix.MADV_DONTFORK)
	}
	if err != nil {
		Unmap(mem, OfAPeer) // nothing was written
		return nil, os.NewSyscallError("madvise MADV_DONTFORK", err)
	}
	return mem, nil
}

// ShowZeros puts a read-only page of zeros in the place of a mapping: the memory
// behind it is free, while somebody who still looks at the address sees
// zeros instead of dying.
func ShowZeros(mem []byte) error {
	if err := Refused("mmap MAP_FIXED"); err != nil {
		return os.NewSyscallError("mmap", err)
	}
	_, err := unix.MmapPtr(-1, 0, unsafe.Pointer(unsafe.SliceData(mem)), uintptr(len(mem)), unix.PROT_READ,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED|unix.MAP_NORESERVE)
	return os.NewSyscallError("mmap", err)
}

// Populate gives every page of mem memory now, so that running out of it is
// an error here and not a signal later, and the data path takes no faults.
// Kernels before 5.14 do not know the advice; there the pages come on use.
func Populate(mem []byte) error {
	err := Refused("madvise MADV_POPULATE_WRITE")
	if err == nil {
		err = unix.Madvise(mem, unix.MADV_POPULATE_WRITE)
	}
	switch err {
	case nil, unix.EINVAL:
		return nil
	case unix.EFAULT: // the shmem layer would have raised SIGBUS
		err = unix.ENOMEM
	}
	return os.NewSyscallError("madvise MADV_POPULATE_WRITE", err)
}

// Discard takes the memory away from the pages of a memfd that mem shows.
func Discard(mem []byte) error {
	err := Refused("madvise MADV_REMOVE")
	if err == nil {
		err = unix.Madvise(mem, unix.MADV_REMOVE)
	}
	return os.NewSyscallError("madvise MADV_REMOVE", err)
}

// MoveMapping puts a mapping in the place of another one of its size.
func MoveMapping(from, to []byte) error {
	if err := Refused("mremap"); err != nil {
		return os.NewSyscallError("mremap", err)
	}
	_, err := unix.MremapPtr(unsafe.Pointer(unsafe.SliceData(from)), uintptr(len(from)),
		unsafe.Pointer(unsafe.SliceData(to)), uintptr(len(to)), unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED)
	return os.NewSyscallError("mremap", err)
}

// AddressRange is a mapping by address: unlike a slice of it, it is what a
// cleanup may keep.
type AddressRange struct {
	addr unsafe.Pointer
	size int
}

// RangeOf returns where mem lies.
func RangeOf(mem []byte) AddressRange {
	return AddressRange{addr: unsafe.Pointer(unsafe.SliceData(mem)), size: len(mem)}
}

// Bytes returns the memory, which must be mapped still.
func (r AddressRange) Bytes() []byte { return unsafe.Slice((*byte)(r.addr), r.size) }

func (r AddressRange) unmap() bool {
	return Refused("munmap") == nil && unix.MunmapPtr(r.addr, uintptr(r.size)) == nil
}

// Backing says whose memory a mapping shows.
type Backing int

// Whose memory it may be.
const (
	OfNobody Backing = iota // the mapping's alone: anonymous memory
	OfMemfd                 // of a memfd of ours, which nobody uses any more
	OfAPeer                 // of a memfd of a peer
)

// Discard frees the memory of a mapping that cannot be taken back. That of a
// memfd stays, whatever happens to the mappings of it, until a hole is punched;
// that of a peer is the peer's.
func (r AddressRange) discard(of Backing) {
	switch of {
	case OfNobody:
		_ = unix.Madvise(r.Bytes(), unix.MADV_DONTNEED)
	case OfMemfd:
		_ = Discard(r.Bytes())
	}
}

// mappingsLeft are mappings that the kernel could not take back yet.
type mappingsLeft struct {
	mu     sync.Mutex
	ranges []AddressRange // the oldest first; guarded by mu
}

// unmapAtOnce is how many mappings that were left one caller tries to take back.
const unmapAtOnce = 16

var unmapLater mappingsLeft

// Unmap takes a mapping back. It cannot fail: the kernel makes one mapping of
// those that lie beside each other, and at its limit of mappings it does not
// cut a piece out of the middle of one. The memory of such a piece is freed,
// and its addresses go when something else is unmapped.
func Unmap(mem []byte, of Backing) { unmapLater.unmap(mem, of) }

func (m *mappingsLeft) unmap(mem []byte, of Backing) {
	left := m.oldest()
	left = slices.DeleteFunc(left, AddressRange.unmap)
	if r := RangeOf(mem); !r.unmap() {
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
func (m *mappingsLeft) oldest() []AddressRange {
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

// LeftMappings returns how many mappings the kernel could not take back yet.
func LeftMappings() int { return unmapLater.count() }
