//go:build amd64 || arm64

package ibverbs

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/internal/pages"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
)

// region is a memory region.
type region struct {
	dev     *device
	address uintptr // struct ibv_mr
	life    lifetime
	owned   []byte        // what AllocMR mapped
	dm      *deviceMemory // whose memory it is, nil of the process's

	// What Reregister changes: no other call about the region runs then but destroy,
	// which life keeps apart.
	pd   *pd
	mem  []byte
	addr uint64
	keys ibvMR
}

func (p *pd) AllocMR(length int, access verbs.Access, opt verbs.MROptions) (verbs.MRDriver, error) {
	mapped, err := pages.Map(length, opt.HugePages)
	if err != nil {
		return nil, err
	}
	r, err := p.registerMemory(&region{mem: mapped[:length:length], owned: mapped, addr: opt.IOVA}, access)
	if err != nil {
		pages.Unmap(mapped)
		return nil, err
	}
	return r, nil
}

// RegisterMR registers memory of the caller. The list of what is open keeps
// it reachable, and Go does not move what is on its heap.
func (p *pd) RegisterMR(mem []byte, access verbs.Access) (verbs.MRDriver, error) {
	return p.RegisterMRAt(mem, 0, access)
}

// RegisterMRAt is RegisterMR with addresses from iova on, or if that is 0 from that of the memory.
func (p *pd) RegisterMRAt(mem []byte, iova uint64, access verbs.Access) (verbs.MRDriver, error) {
	r, err := p.registerMemory(&region{mem: mem, addr: iova}, access)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// RegisterAll registers all addresses (implicit on-demand paging).
func (p *pd) RegisterAll(access verbs.Access) (verbs.MRDriver, error) {
	r, err := p.register(new(region), 0, ^uintptr(0), access)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// registerMemory registers the memory of r. If r has no address yet it gets that of its memory.
func (p *pd) registerMemory(r *region, access verbs.Access) (*region, error) {
	start := startOf(r.mem)
	r.addr = pages.DeviceAddress(uint64(start), r.addr, access&verbs.AccessZeroBased != 0)
	return p.register(r, start, uintptr(len(r.mem)), access)
}

// register makes the library's side of r.
func (p *pd) register(r *region, start, length uintptr, access verbs.Access) (*region, error) {
	r.dev, r.pd = p.dev, p
	err := p.make(func() (err error) {
		r.address, err = handle(p.dev.lib.regMR, p.address, start, length, uintptr(r.addr), uintptr(access))
		if err != nil {
			return failed("ibv_reg_mr_iova2", err)
		}
		r.keys = *view[ibvMR](r.address)
		if r.keys.context != p.dev.context || r.keys.pd != p.address || r.keys.length != length {
			number(p.dev.lib.deregMR, r.address)
			return unknownLayout("ibv_mr")
		}
		p.dev.add(r.address, r)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// AllocNullMR makes a region without memory.
func (p *pd) AllocNullMR() (verbs.MRDriver, error) {
	r := &region{dev: p.dev, pd: p}
	err := p.make(func() (err error) {
		if r.address, err = handle(p.dev.extension.allocNullMR, p.address); err != nil {
			return failed("ibv_alloc_null_mr", err)
		}
		return r.adopt()
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// adopt takes the keys of a region that has no memory of the process.
func (r *region) adopt() error {
	if r.keys = *view[ibvMR](r.address); r.keys.context != r.dev.context {
		return unknownLayout("ibv_mr") // nor can it be deregistered, which looks there
	}
	r.dev.add(r.address, r)
	return nil
}

// AdviseMR tells the device of memory that is paged in on demand.
func (p *pd) AdviseMR(advice verbs.Advice, list []verbs.SGE) error {
	pieces := make([]ibvSGE, len(list))
	for i, e := range list {
		pieces[i] = ibvSGE{addr: e.Addr, length: e.Length, lkey: e.LKey}
	}
	advise := p.dev.extension.adviseMR
	if advise == 0 {
		return verbs.ErrUnsupported
	}
	return p.dev.during(func() error {
		return p.life.during(func() error {
			err := status(advise, p.address, uintptr(advice), adviseFlush, uintptr(unsafe.Pointer(&pieces[0])), uintptr(len(pieces)))
			switch {
			case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EPERM), errors.Is(err, unix.EFAULT):
				// Of the PD there is no such MR, or one that is pinned; it has not
				// that right; or it is shorter. No limit of the process explains that, so the
				// number is not wrapped.
				return fmt.Errorf("ibv_advise_mr: %w: %v", verbs.ErrInvalid, err)
			}
			return failed("ibv_advise_mr", err)
		})
	})
}

// startOf is where memory begins, which does not move.
func startOf(mem []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(mem))) }

func (r *region) Bytes() []byte { return r.mem }
func (r *region) Addr() uint64  { return r.addr }
func (r *region) LKey() uint32  { return r.keys.lkey }
func (r *region) RKey() uint32  { return r.keys.rkey }

// Reregister changes a region. Its keys may change with it. The library lets nobody choose the
// addresses of other memory, which are its own then.
func (r *region) Reregister(mem []byte, iova uint64, to verbs.PDDriver, access verbs.Access, mask verbs.MRChange) error {
	moves := mask&verbs.MRChangeMemory != 0
	if moves && (iova != 0 && iova != uint64(startOf(mem)) || access&verbs.AccessZeroBased != 0) {
		return fmt.Errorf("%w: ibv_rereg_mr gives other memory no other addresses than its own", verbs.ErrUnsupported)
	}
	return r.dev.during(func() error {
		return r.life.alone(func() error { return r.change(mem, to, access, mask) })
	})
}

func (r *region) change(mem []byte, to verbs.PDDriver, access verbs.Access, mask verbs.MRChange) error {
	p, address := r.pd, uintptr(0)
	if mask&verbs.MRChangePD != 0 {
		var ok bool
		if p, ok = to.(*pd); !ok || p.dev != r.dev {
			return fmt.Errorf("%w: PD of another device", verbs.ErrInvalid)
		}
		address = p.address
	}
	if mask&verbs.MRChangeAccess == 0 {
		access = 0 // the library takes no others then
	}
	if err := p.life.use(); err != nil {
		return err
	}
	of := mem
	if mask&verbs.MRChangeMemory == 0 && r.addr == uint64(startOf(r.mem)) {
		// The kernel makes some regions on demand anew for other rights, of the memory that is
		// named, with its own addresses.
		of = r.mem
	}
	err := status(r.dev.lib.reregMR, r.address, uintptr(mask), address, startOf(of), uintptr(len(of)), uintptr(access))
	if err != nil {
		p.life.release()
		return failed("ibv_rereg_mr", err)
	}
	r.pd.life.release()
	r.pd, r.keys = p, *view[ibvMR](r.address)
	if mask&verbs.MRChangeMemory != 0 {
		r.mem, r.addr = mem, uint64(startOf(mem))
	}
	return nil
}

func (r *region) Deregister() error { return r.dev.during(r.destroy) }

func (r *region) rank() int { return rankMR }

func (r *region) destroy() error {
	d := r.dev
	return r.life.end(func() error {
		d.drop(r.address)
		err := failed("ibv_dereg_mr", status(d.lib.deregMR, r.address))
		if d.entry.DriverID == rdmahost.DriverRXE && errors.Is(err, verbs.ErrInvalid) {
			// it says EINVAL of a region with windows
			err = fmt.Errorf("ibv_dereg_mr: %w", verbs.ErrBusy)
		}
		if d.restore(r.address, r, err) {
			return err
		}
		r.pd.life.release()
		if r.dm != nil {
			r.dm.life.release()
		}
		pages.Unmap(r.owned)
		return nil
	})
}
