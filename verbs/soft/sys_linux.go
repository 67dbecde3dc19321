package soft

import (
	"errors"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// segmentSeals keep a peer from truncating what we have mapped, which would
// be SIGBUS, and from sealing more.
const segmentSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// refuse, which only tests set, is asked before each system call of this package
// that can fail, and its error is then that of the call.
var refuse atomic.Pointer[func(call string) error]

func refused(call string) error {
	if f := refuse.Load(); f != nil {
		return (*f)(call)
	}
	return nil
}

func memfdCreate(name string, flags int) (int, error) {
	call := "memfd_create"
	if flags&unix.MFD_NOEXEC_SEAL != 0 {
		call = "memfd_create with MFD_NOEXEC_SEAL"
	}
	if err := refused(call); err != nil {
		return -1, err
	}
	return unix.MemfdCreate(name, flags)
}

// newMemfd makes an unsealed memfd of size bytes that nobody can execute.
// Kernels before 6.3 do not know that wish, and have all memfds executable.
func newMemfd(name string, size int) (int, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := memfdCreate(name, flags|unix.MFD_NOEXEC_SEAL)
	if err == unix.EINVAL {
		fd, err = memfdCreate(name, flags)
	}
	if err != nil {
		return -1, os.NewSyscallError("memfd_create", err)
	}
	err = refused("ftruncate")
	if err == nil {
		err = unix.Ftruncate(fd, int64(size))
	}
	if err != nil {
		unix.Close(fd)
		return -1, os.NewSyscallError("ftruncate", err)
	}
	return fd, nil
}

// allocate gives memory to the bytes of a memfd from first to end.
func allocate(fd, first, end int) error {
	if err := refused("fallocate"); err != nil {
		return os.NewSyscallError("fallocate", err)
	}
	err := error(unix.EINTR)
	for err == unix.EINTR { // by a signal: the scheduler's, for one
		err = unix.Fallocate(fd, 0, int64(first), int64(end-first))
	}
	return os.NewSyscallError("fallocate", err)
}

func seal(fd, seals int) error {
	if err := refused("fcntl F_ADD_SEALS"); err != nil {
		return os.NewSyscallError("fcntl F_ADD_SEALS", err)
	}
	_, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	return os.NewSyscallError("fcntl F_ADD_SEALS", err)
}

var errNotSealed = errors.New("descriptor from the peer is not a sealed memfd of the announced size")

// checkSealed makes sure that fd, which came from a peer, is a memfd that
// cannot shrink below size while we have it mapped.
func checkSealed(fd, size int) error {
	const need = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
	if refused("fcntl F_GET_SEALS") != nil {
		return errNotSealed
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&need != need {
		return errNotSealed
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Size < int64(size) {
		return errNotSealed
	}
	// A memfd of huge pages can be sealed too, but a hole punched into it may
	// not be filled again, and it cannot be mapped in pieces of pages.
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil || fs.Type != unix.TMPFS_MAGIC {
		return errNotSealed
	}
	return nil
}

// mapFD maps size bytes of fd, shared and not inherited by forked children.
func mapFD(fd int, offset int64, size, prot int) ([]byte, error) {
	return mapMemory(fd, offset, size, prot, unix.MAP_SHARED)
}

// mapAnonymous maps size bytes of zeros of our own.
func mapAnonymous(size int, flags int) ([]byte, error) {
	return mapMemory(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|flags)
}

func mapMemory(fd int, offset int64, size, prot, flags int) ([]byte, error) {
	if err := refused("mmap"); err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	p, err := unix.MmapPtr(fd, offset, nil, uintptr(size), prot, flags)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	mem := unsafe.Slice((*byte)(p), size)
	err = refused("madvise MADV_DONTFORK")
	if err == nil {
		err = unix.Madvise(mem, unix.MADV_DONTFORK)
	}
	if err != nil {
		unmap(mem, ofAPeer) // nothing was written
		return nil, os.NewSyscallError("madvise MADV_DONTFORK", err)
	}
	return mem, nil
}

// showZeros puts a read-only page of zeros in the place of a mapping: the memory
// behind it is free, while somebody who still looks at the address sees
// zeros instead of dying.
func showZeros(mem []byte) error {
	if err := refused("mmap MAP_FIXED"); err != nil {
		return os.NewSyscallError("mmap", err)
	}
	_, err := unix.MmapPtr(-1, 0, unsafe.Pointer(unsafe.SliceData(mem)), uintptr(len(mem)), unix.PROT_READ,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED|unix.MAP_NORESERVE)
	return os.NewSyscallError("mmap", err)
}

// populate gives every page of mem memory now, so that running out of it is
// an error here and not a signal later, and the data path takes no faults.
// Kernels before 5.14 do not know the advice; there the pages come on use.
func populate(mem []byte) error {
	err := refused("madvise MADV_POPULATE_WRITE")
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

// discard takes the memory away from the pages of a memfd that mem shows.
func discard(mem []byte) error {
	err := refused("madvise MADV_REMOVE")
	if err == nil {
		err = unix.Madvise(mem, unix.MADV_REMOVE)
	}
	return os.NewSyscallError("madvise MADV_REMOVE", err)
}

// soPassRights is SO_PASSRIGHTS (Linux 6.16): with 0, who sends descriptors gets EPERM.
const soPassRights = 83

// newWakeSocket makes a pair of wake-up sockets. No descriptors come to the near one,
// where the kernel can refuse them: they would be closed by the thread that reads.
func newWakeSocket() (near, far int, err error) {
	if err := refused("socketpair"); err != nil {
		return -1, -1, os.NewSyscallError("socketpair", err)
	}
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, -1, os.NewSyscallError("socketpair", err)
	}
	_ = unix.SetsockoptInt(ends[0], unix.SOL_SOCKET, soPassRights, 0) // older kernels have no such option
	return ends[0], ends[1], nil
}

func dupFD(fd int) (int, error) {
	if err := refused("dup"); err != nil {
		return -1, os.NewSyscallError("dup", err)
	}
	nfd, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	return nfd, os.NewSyscallError("dup", err)
}

// sendWake sends a byte to the other wake-up socket of a pair. Whether the call may block is
// said in the call, and not by flags that a peer who has the same socket could
// change; and nothing that the peer does to its end holds what the call needs. If
// there is no room for the byte, others wait to be seen.
func sendWake(fd int) {
	var one [1]byte
	syscall.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&one)), 1, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
}

// drainWakes takes what a wake-up socket holds and reports whether that is something.
func drainWakes(fd int) (some bool) {
	var buf [256]byte
	for range wakeReads {
		n, _, errno := syscall.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&buf)), uintptr(len(buf)), unix.MSG_DONTWAIT, 0, 0)
		if errno != 0 || n == 0 {
			break
		}
		some = true
		if n < uintptr(len(buf)) {
			break
		}
	}
	return some
}

// wakeReads bounds the work that a peer which sends all the time can make.
const wakeReads = 4

// checkWakeSocket makes sure that fd, which came from a peer, is a Unix stream socket:
// sending to other things may block, or do something.
func checkWakeSocket(fd int) error {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err == nil && domain == unix.AF_UNIX {
		var kind int
		if kind, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE); err == nil && kind == unix.SOCK_STREAM {
			return nil
		}
	}
	return errors.New("wake-up socket from the peer is not a Unix stream socket")
}

const (
	futexWaitOp = 0 // FUTEX_WAIT, not private: the word is shared between processes
	futexWakeOp = 1 // FUTEX_WAKE
)

// futexWait blocks the thread while *addr is val, for at most timeout if that
// is not nil. It returns at a wake, a change, a signal or the timeout.
func futexWait(addr *uint32, val uint32, timeout *unix.Timespec) {
	syscall.Syscall6(syscall.SYS_FUTEX, uintptr(unsafe.Pointer(addr)), futexWaitOp, uintptr(val), uintptr(unsafe.Pointer(timeout)), 0, 0)
}

// futexWake wakes all threads in futexWait on addr.
func futexWake(addr *uint32) {
	syscall.RawSyscall6(syscall.SYS_FUTEX, uintptr(unsafe.Pointer(addr)), futexWakeOp, 1<<30, 0, 0, 0)
}

// pollReadable blocks the thread until one of pfds is ready, or for at most timeout
// if that is not nil.
func pollReadable(pfds []unix.PollFd, timeout *unix.Timespec) {
	syscall.Syscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(unsafe.SliceData(pfds))), uintptr(len(pfds)), uintptr(unsafe.Pointer(timeout)), 0, 0, 0)
}

// newStop makes an eventfd that ends pollReadable, -1 if there is no descriptor for it.
func newStop() int {
	if refused("eventfd") != nil {
		return -1
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return -1
	}
	return fd
}

func setStop(fd int) {
	one := uint64(1)
	syscall.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&one)), unsafe.Sizeof(one))
}

// takeStop has the next pollReadable wait again.
func takeStop(fd int) {
	var count uint64
	syscall.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&count)), unsafe.Sizeof(count))
}

func closeFDs(fds ...int) {
	for _, fd := range fds {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// word gives the futex call the plain form of an atomic word.
func word(w *atomic.Uint32) *uint32 { return (*uint32)(unsafe.Pointer(w)) }

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
