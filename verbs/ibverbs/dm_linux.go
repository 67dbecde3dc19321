//go:build amd64 || arm64

package ibverbs

import (
	"fmt"
	"unsafe"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// deviceMemory is memory of the device.
type deviceMemory struct {
	dev     *device
	address uintptr // struct ibv_dm
	life    lifetime
}

// hasMemory reports whether the driver of the library has what memory of a device needs.
func (d *device) hasMemory() bool {
	return d.extension.allocDM != 0 && d.extension.freeDM != 0 && d.extension.regDMMR != 0
}

func (d *device) AllocDM(length int) (verbs.DMDriver, error) {
	m := &deviceMemory{dev: d}
	if err := d.during(func() error { return m.create(length) }); err != nil {
		return nil, err
	}
	return m, nil
}

func (m *deviceMemory) create(length int) (err error) {
	d := m.dev
	in := &ibvAllocDMAttr{length: uintptr(length)}
	if m.address, err = handle(d.extension.allocDM, d.context, uintptr(unsafe.Pointer(in))); err != nil {
		return failed("ibv_alloc_dm", err)
	}
	if v := view[ibvDM](m.address); v.context != d.context || v.memcpyTo == 0 || v.memcpyFrom == 0 {
		number(d.extension.freeDM, m.address)
		return unknownLayout("ibv_dm")
	}
	d.add(m.address, m)
	return nil
}

// Read and Write copy some bytes, which are inside.
func (m *deviceMemory) Read(b []byte, offset int) error {
	return m.named("ibv_memcpy_from_dm", func(v *ibvDM) error {
		return status(v.memcpyFrom, uintptr(unsafe.Pointer(&b[0])), m.address, uintptr(offset), uintptr(len(b)))
	})
}

func (m *deviceMemory) Write(b []byte, offset int) error {
	return m.named("ibv_memcpy_to_dm", func(v *ibvDM) error {
		return status(v.memcpyTo, m.address, uintptr(offset), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	})
}

// named runs a call that names the memory. The library does not look whether the device was removed, and
// the kernel has put zeros in the place of the memory then: one that answers after the copy shows that there
// was a device.
func (m *deviceMemory) named(function string, f func(*ibvDM) error) error {
	return m.dev.seen(m.dev.during(func() error {
		return m.life.during(func() error {
			if err := f(view[ibvDM](m.address)); err != nil {
				return failed(function, err)
			}
			return m.dev.answers()
		})
	}))
}

func (m *deviceMemory) Free() error { return m.dev.during(m.destroy) }

func (m *deviceMemory) rank() int { return rankDM }

func (m *deviceMemory) destroy() error {
	return m.life.end(func() error {
		m.dev.drop(m.address)
		err := failed("ibv_free_dm", status(m.dev.extension.freeDM, m.address))
		m.dev.restore(m.address, m, err)
		return err
	})
}

// RegisterDM registers memory of the device.
func (p *pd) RegisterDM(of verbs.DMDriver, offset, length int, access verbs.Access) (verbs.MRDriver, error) {
	m, ok := of.(*deviceMemory)
	if !ok || m.dev != p.dev {
		return nil, fmt.Errorf("%w: memory of another device", verbs.ErrInvalid)
	}
	r := &region{dev: p.dev, pd: p, dm: m}
	err := p.make(func() error {
		if err := m.life.use(); err != nil {
			return err
		}
		err := r.registerDM(offset, length, access)
		if err != nil {
			m.life.release()
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

func (r *region) registerDM(offset, length int, access verbs.Access) (err error) {
	d := r.dev
	r.address, err = handle(d.extension.regDMMR, r.pd.address, r.dm.address, uintptr(offset), uintptr(length), uintptr(access))
	if err != nil {
		return failed("ibv_reg_dm_mr", err)
	}
	return r.adopt()
}
