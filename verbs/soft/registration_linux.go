package soft

import (
	"os"
	"unsafe"

	"github.com/seed-b9b531af/ramjet/verbs"
	"golang.org/x/sys/unix"
)

// registration is an MR as package verbs has it: a region, and after Reregister
// another one. Package verbs lets one caller at a time in.
type registration struct {
	*region
	broken bool // Reregister failed after it had taken the region away
}

func (m *registration) Deregister() error {
	if m.broken {
		m.broken = false
		m.region.dispose()
		return nil
	}
	return m.region.Deregister()
}

// Reregister takes the region away from everybody and makes another one of its
// memory, at the same address, or of mem. Its key is a new one.
func (m *registration) Reregister(mem []byte, p verbs.PDDriver, access verbs.Access, mask verbs.MRChange) error {
	old := m.region
	next := &region{dev: old.dev, pd: old.pd, access: old.access, fd: -1}
	if mask&verbs.MRChangePD != 0 {
		next.pd = p.(*pd)
	}
	if mask&verbs.MRChangeAccess != 0 {
		next.access = access
	}
	if err := checkAccess(next.access); err != nil {
		return err
	}
	if err := old.windows.close(); err != nil {
		return err
	}
	if err := old.stop(); err != nil {
		return err
	}
	m.broken = true
	switch {
	case mask&verbs.MRChangeMemory != 0:
		next.pin(mem)
	case old.mapping == nil:
		next.pin(old.mem)
	default:
		if err := next.takeMapping(old); err != nil {
			return err
		}
	}
	if err := next.pd.addRegion(next); err != nil {
		if next.mapping != nil { // it is old's still
			next.mapping = nil
		}
		next.free()
		return err
	}
	if next.mapping != nil {
		old.mapping = nil
	}
	old.dispose()
	m.region, m.broken = next, false
	return nil
}

// takeMapping gives r the memory of old, which is mapped anew if other processes
// have it now, or are to have it: they keep what they have mapped.
func (r *region) takeMapping(old *region) error {
	if old.shared || forPeers(r.access) {
		fresh := &region{dev: r.dev, access: r.access, fd: -1}
		length := len(old.mapping)
		var err error
		if forPeers(r.access) {
			err = fresh.mapShared(length, verbs.MROptions{})
		} else {
			err = fresh.mapPrivate(length, verbs.MROptions{})
		}
		if err != nil {
			return err
		}
		copy(fresh.mapping, old.mapping)
		if err := moveMapping(fresh.mapping, old.mapping); err != nil {
			fresh.free()
			return err
		}
		r.fd, r.shared, r.sealed = fresh.fd, fresh.shared, fresh.sealed
		old.shared = fresh.shared
	}
	r.mapping, r.mem = old.mapping, old.mem
	return nil
}

// moveMapping puts a mapping in the place of another one of its size.
func moveMapping(from, to []byte) error {
	if err := refused("mremap"); err != nil {
		return os.NewSyscallError("mremap", err)
	}
	_, err := unix.MremapPtr(unsafe.Pointer(unsafe.SliceData(from)), uintptr(len(from)),
		unsafe.Pointer(unsafe.SliceData(to)), uintptr(len(to)), unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED)
	return os.NewSyscallError("mremap", err)
}
