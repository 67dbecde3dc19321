package soft

import (
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// segment is the mapping of an inbound segment in the process that made it.
// Its QP holds one reference, a QP of the same process that is paired with it
// another.
type segment struct {
	view
	geo  geometry
	mem  []byte
	fd   atomic.Int32 // -1 once it is not needed for a handshake any more
	refs atomic.Int32
}

func (d *device) newSegment(geo geometry) (*segment, error) {
	fd, err := d.memfd("ramjet-qp", geo.size())
	if err != nil {
		return nil, err
	}
	// The counters and the first descriptors must exist; the rest comes on use.
	for _, room := range geo.rooms() {
		if err := allocate(fd, room[0], room[1]); err != nil {
			unix.Close(fd)
			return nil, err
		}
	}
	if err := seal(fd, segmentSeals); err != nil {
		unix.Close(fd)
		return nil, err
	}
	mem, err := d.mmap(fd, geo.size(), unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	s := &segment{view: viewOf(mem, geo), geo: geo, mem: mem}
	s.fd.Store(int32(fd))
	s.refs.Store(1)
	// CQ.Poll looks at the ring without a lock, so the addresses stay mapped
	// until the collector proves that nobody can look any more.
	runtime.AddCleanup(s, func(r addressRange) { unmap(r.bytes(), ofMemfd) }, rangeOf(mem))
	if err := geo.populate(mem, geo.size()); err != nil {
		s.release()
		return nil, err
	}
	return s, nil
}

// populate gives memory to what must have it, up to limit bytes.
func (g geometry) populate(mem []byte, limit int) error {
	for _, room := range g.rooms() {
		n := min(room[1]-room[0], limit)
		if err := populate(mem[room[0]:][:n]); err != nil {
			return err
		}
		limit -= n
	}
	return nil
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
	_ = hollow(s.mem)
}
