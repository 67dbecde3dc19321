package pages

import (
	"os"

	"golang.org/x/sys/unix"
)

// Size is the size of the machine's pages: 4 KiB, or 16 or 64 KiB on some
// kernels for arm64.
var Size = os.Getpagesize()

const hugeSize = 2 << 20

// Map maps at least length bytes that a forked child does not inherit:
// the device writes to these pages, and a copy on write would tear them off. huge asks for
// huge pages, and is a wish.
func Map(length int, huge bool) ([]byte, error) {
	const prot, flags = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	var mem []byte
	err := error(unix.EINVAL)
	if huge && length >= hugeSize {
		rounded := (length + hugeSize - 1) &^ (hugeSize - 1)
		mem, err = unix.Mmap(-1, 0, rounded, prot, flags|unix.MAP_HUGETLB)
	}
	if err != nil {
		rounded := (length + Size - 1) &^ (Size - 1)
		if mem, err = unix.Mmap(-1, 0, rounded, prot, flags); err != nil {
			return nil, os.NewSyscallError("mmap", err)
		}
		if huge {
			_ = unix.Madvise(mem, unix.MADV_HUGEPAGE) // a wish
		}
	}
	if err := unix.Madvise(mem, unix.MADV_DONTFORK); err != nil {
		Unmap(mem)
		return nil, os.NewSyscallError("madvise", err)
	}
	return mem, nil
}

// Unmap unmaps what Map mapped, in full length, or nothing.
func Unmap(mem []byte) {
	if mem != nil {
		_ = unix.Munmap(mem) // fails only for memory that is not mapped
	}
}

// DeviceAddress is by what the device knows memory that begins at start: iova, or if that is 0
// start itself. That of a zero-based region is the offset within its page, where the kernel wants
// it to agree with start.
func DeviceAddress(start, iova uint64, zeroBased bool) uint64 {
	switch {
	case iova != 0:
		return iova
	case zeroBased:
		return start % uint64(Size)
	default:
		return start
	}
}
