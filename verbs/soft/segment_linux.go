package soft

import (
	"runtime"
	"sync/atomic"

	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/protocol"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/sys"
	"golang.org/x/sys/unix"
)

// segmentSeals keep a peer from truncating what we have mapped, which would
// be SIGBUS, and from sealing more.
const segmentSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

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
	if err := geo.Populate(mem, geo.Size()); err != nil {
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
