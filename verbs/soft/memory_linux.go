package soft

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/protocol"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/sys"
	"golang.org/x/sys/unix"
)

// How memory comes into this process: the inbound segments of our QPs, the memory of MRs,
// and what peers share. What peers can map is a memfd whose size is sealed, so that
// nobody can truncate what another has mapped, which would be SIGBUS.

// segment is the mapping of an inbound segment in the process that made it.
// Its QP holds one reference, a QP of the same process that is paired with it
// another.
type segment struct {
	protocol.View
	geo  protocol.Geometry
	mem  []byte
	fd   atomic.Int32 // -1 once it is not needed for a handshake any more
	refs atomic.Int32
}

// segmentSeals fix the size, and keep a peer from sealing more.
const segmentSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

func (d *device) newSegment(geo protocol.Geometry) (*segment, error) {
	fd, err := d.memfd("ramjet-qp", geo.Size())
	if err != nil {
		return nil, err
	}
	// The counters and the first descriptors must exist; the rest comes on use.
	for _, room := range geo.Rooms() {
		if err := sys.Allocate(fd, room[0], room[1]); err != nil {
			unix.Close(fd)
			return nil, err
		}
	}
	if err := sys.Seal(fd, segmentSeals); err != nil {
		unix.Close(fd)
		return nil, err
	}
	mem, err := d.mmap(fd, 0, geo.Size(), unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	s := &segment{View: protocol.ViewOf(mem, geo), geo: geo, mem: mem}
	s.fd.Store(int32(fd))
	s.refs.Store(1)
	// CQ.Poll looks at the ring without a lock, so the addresses stay mapped
	// until the collector proves that nobody can look any more.
	runtime.AddCleanup(s, func(r sys.AddressRange) { sys.Unmap(r.Bytes(), sys.OfMemfd) }, sys.RangeOf(mem))
	if err := geo.Populate(mem); err != nil {
		s.release()
		return nil, err
	}
	return s, nil
}

// closeFD gives up the descriptor, after the handshake.
func (s *segment) closeFD() {
	if fd := s.fd.Swap(-1); fd >= 0 {
		unix.Close(int(fd))
	}
}

func (s *segment) retain() *segment {
	s.refs.Add(1)
	return s
}

// release gives up a reference. With the last one the memory is freed.
func (s *segment) release() {
	if s.refs.Add(-1) != 0 {
		return
	}
	s.closeFD()
	// If the kernel has no room to split the mapping, the memory stays until
	// the cleanup runs; nothing else is lost.
	_ = sys.ShowZeros(s.mem)
	runtime.KeepAlive(s) // or the cleanup could have given the addresses away before the zeros come
}

// mapPrivate gets memory that only this process can reach.
func (r *region) mapPrivate(length int, opt verbs.MROptions) error {
	const huge = 2 << 20
	size := protocol.PageAlign(length)
	var err error
	if opt.HugePages && length >= huge {
		size = (length + huge - 1) &^ (huge - 1)
		r.mapping, err = r.dev.mmapAnonymous(size, unix.MAP_HUGETLB)
		if err != nil {
			size = protocol.PageAlign(length)
		}
	}
	if r.mapping == nil {
		if r.mapping, err = r.dev.mmapAnonymous(size, 0); err != nil {
			return err
		}
	}
	if opt.HugePages {
		_ = unix.Madvise(r.mapping, unix.MADV_HUGEPAGE) // a wish; kernels without them refuse it
	}
	if r.access&verbs.AccessOnDemand == 0 {
		if err := sys.Populate(r.mapping); err != nil {
			sys.Unmap(r.mapping, sys.OfNobody)
			return err
		}
	}
	r.mem = r.mapping[:length:length]
	return nil
}

// mapShared gets memory that peers can map: a memfd of its own.
func (r *region) mapShared(length int, opt verbs.MROptions) error {
	size := protocol.PageAlign(length)
	fd, err := r.dev.memfd("ramjet-mr", size)
	if err != nil {
		return err
	}
	mapping, err := r.dev.mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		unix.Close(fd)
		return err
	}
	r.fd, r.mapping, r.shared, r.onePeer = fd, mapping, true, opt.OnePeer
	if opt.HugePages {
		_ = unix.Madvise(mapping, unix.MADV_HUGEPAGE) // a wish; kernels without them refuse it
	}
	if opt.Sparse {
		err = sys.Populate(mapping[:min(size, sparseSize)])
	} else {
		err = sys.Populate(mapping)
	}
	if err == nil {
		err = r.sealShared()
	}
	if err != nil {
		sys.Unmap(mapping, sys.OfMemfd)
		unix.Close(fd)
		r.fd = -1
		return err
	}
	r.mem = mapping[:length:length]
	return nil
}

// sealShared fixes the size. If no key will ever let peers write to the memory, nobody can map it
// writable after us (Linux 5.1). Only our user can open other memory, so other users who get a
// read-only descriptor (descriptorFor) cannot open it for writing.
func (r *region) sealShared() error {
	seals := unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
	if !r.everWritten() {
		if sys.Seal(r.fd, seals|unix.F_SEAL_FUTURE_WRITE|unix.F_SEAL_SEAL) == nil {
			r.sealed = true
			return nil
		}
	}
	// some keys are to read only
	if r.access&remoteWrites == 0 || r.access&verbs.AccessMWBind != 0 {
		err := sys.Refused("fchmod")
		if err == nil {
			err = unix.Fchmod(r.fd, 0o600)
		}
		if err != nil {
			return os.NewSyscallError("fchmod", err)
		}
	}
	return sys.Seal(r.fd, seals|unix.F_SEAL_SEAL)
}

// everWritten reports whether a key of this memory may let peers write: its own, or
// that of a window.
func (r *region) everWritten() bool {
	const windows = verbs.AccessMWBind | verbs.AccessLocalWrite // without the second one none may write
	return r.access&remoteWrites != 0 || r.access&windows == windows
}

// descriptorFor returns the descriptor of this memory for a peer with these rights.
// Where they are to read only, and others may write, it is one of its own, which
// cannot be mapped writable; done closes it.
func (r *region) descriptorFor(access verbs.Access) (fd int, done func(), err error) {
	if r.sealed || access&remoteWrites != 0 {
		return r.fd, func() {}, nil
	}
	if err := sys.Refused("open"); err != nil {
		return -1, nil, os.NewSyscallError("open", err)
	}
	fd, err = unix.Open("/proc/self/fd/"+strconv.Itoa(r.fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, nil, os.NewSyscallError("open", err)
	}
	return fd, func() { unix.Close(fd) }, nil
}

// takeMapping gives r the memory of old, which is mapped anew if other processes
// have it now, or are to have it: they keep what they have mapped.
func (r *region) takeMapping(old *region) error {
	if old.shared || forPeers(r.access) {
		fresh := &region{dev: r.dev, access: r.access, fd: -1}
		length := len(old.mapping)
		var err error
		if forPeers(r.access) {
			err = fresh.mapShared(length, verbs.MROptions{Sparse: r.access&verbs.AccessOnDemand != 0})
		} else {
			err = fresh.mapPrivate(length, verbs.MROptions{})
		}
		if err != nil {
			return err
		}
		copy(fresh.mapping, old.mapping)
		if err := sys.MoveMapping(fresh.mapping, old.mapping); err != nil {
			fresh.free()
			return err
		}
		r.fd, r.shared, r.sealed = fresh.fd, fresh.shared, fresh.sealed
		old.shared = fresh.shared
	}
	r.mapping, r.mem = old.mapping, old.mem
	return nil
}

func (r *region) free() {
	sys.CloseFDs(r.fd)
	switch {
	case r.mapping == nil: // memory of the caller, or another region's by now
	case r.shared:
		sys.Unmap(r.mapping, sys.OfMemfd)
	default:
		sys.Unmap(r.mapping, sys.OfNobody)
	}
	r.pinner.Unpin()
}

// mapPeerSegment maps what a peer calls its segment.
func (d *device) mapPeerSegment(fd int, geo protocol.Geometry) ([]byte, error) {
	if err := sys.CheckSealed(fd, int64(geo.Size()), int64(geo.Size())); err != nil {
		return nil, err
	}
	mapping, err := d.mmap(fd, 0, geo.Size(), unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return nil, fmt.Errorf("map the peer's segment: %w", err)
	}
	if err := geo.Populate(mapping); err != nil {
		sys.Unmap(mapping, sys.OfAPeer)
		return nil, fmt.Errorf("map the peer's segment: %w", err)
	}
	return mapping, nil
}

// ahead returns how much of a peer's memory is faulted in ahead of use: a little of
// what has no pages yet, for those would be ours to pay. The peer can take pages
// away after we looked, so there is a limit to the rest too.
func ahead(fd, size int) int {
	if hole, err := unix.Seek(fd, 0, unix.SEEK_HOLE); err != nil || hole < int64(size) {
		return min(size, sparseSize)
	}
	return min(size, populateLimit)
}

const (
	populateLimit = 4 << 20
	sparseSize    = 4 << 10 // of a region that was made sparse
)
