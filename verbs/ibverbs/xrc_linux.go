//go:build amd64 || arm64

package ibverbs

import (
	"fmt"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// xrcDomain is an XRC domain.
type xrcDomain struct {
	dev     *device
	address uintptr // struct ibv_xrcd
	life    lifetime
}

// hasDomains reports whether the driver of the library has what XRC needs.
func (d *device) hasDomains() bool {
	e := &d.extension
	for _, function := range []uintptr{e.openXRCD, e.closeXRCD, e.createSRQEx, e.getSRQNum, e.createQPEx, e.openQP} {
		if function == 0 {
			return false
		}
	}
	return true
}

func (d *device) OpenXRCDomain(file *os.File) (verbs.XRCDomainDriver, error) {
	x := &xrcDomain{dev: d}
	open := func(fd int32) error { return d.during(func() error { return x.open(fd) }) }
	if file == nil {
		if err := open(-1); err != nil {
			return nil, err
		}
		return x, nil
	}
	var openErr error
	conn, err := file.SyscallConn()
	if err == nil {
		err = conn.Control(func(fd uintptr) { openErr = open(int32(fd)) })
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: the file of an XRC domain: %w", verbs.ErrInvalid, err)
	case openErr != nil:
		return nil, openErr
	}
	return x, nil
}

// open opens the domain of a file, or if that is -1 one of nobody else's.
func (x *xrcDomain) open(fd int32) (err error) {
	d := x.dev
	in := &ibvXRCDInitAttr{compMask: xrcdAttrFile, fd: fd, oflags: unix.O_CREAT}
	if x.address, err = handle(d.extension.openXRCD, d.context, uintptr(unsafe.Pointer(in))); err != nil {
		return failed("ibv_open_xrcd", err)
	}
	if view[ibvXRCD](x.address).context != d.context {
		number(d.extension.closeXRCD, x.address)
		return unknownLayout("ibv_xrcd")
	}
	d.add(x.address, x)
	return nil
}

func (x *xrcDomain) Close() error { return x.dev.during(x.destroy) }

func (x *xrcDomain) rank() int { return rankDomain }

func (x *xrcDomain) destroy() error {
	return x.life.end(func() error {
		x.dev.drop(x.address)
		err := failed("ibv_close_xrcd", status(x.dev.extension.closeXRCD, x.address))
		x.dev.restore(x.address, x, err)
		return err
	})
}

func (x *xrcDomain) CreateSRQ(of verbs.PDDriver, completions verbs.CQDriver, attr *verbs.SRQAttr) (verbs.XRCSRQDriver, error) {
	s := &srq{dev: x.dev, domain: x}
	var ok bool
	if s.pd, ok = of.(*pd); !ok || s.pd.dev != x.dev {
		return nil, fmt.Errorf("%w: PD of another device", verbs.ErrInvalid)
	}
	if s.cq, ok = completions.(*cq); !ok || s.cq.dev != x.dev {
		return nil, fmt.Errorf("%w: CQ of another device", verbs.ErrInvalid)
	}
	err := x.dev.during(func() error {
		parts := []*lifetime{&s.pd.life, &x.life, &s.cq.life}
		if err := useAll(parts...); err != nil {
			return err
		}
		err := s.createXRC(attr)
		if err != nil {
			releaseAll(parts...)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (s *srq) createXRC(attr *verbs.SRQAttr) (err error) {
	d := s.dev
	in := &ibvSRQInitAttrEx{
		attr:     ibvSRQAttr{maxWR: uint32(attr.MaxWR), maxSGE: uint32(max(attr.MaxSGE, 1)), limit: uint32(attr.Limit)},
		compMask: srqAttrXRC, srqType: srqTypeXRC, pd: s.pd.address, xrcd: s.domain.address, cq: s.cq.address,
	}
	s.address, err = d.numbered(func() (uintptr, error) {
		return handle(d.extension.createSRQEx, d.context, uintptr(unsafe.Pointer(in)))
	})
	if err != nil {
		return failed("ibv_create_srq_ex", err)
	}
	num := new(uint32)
	if err := status(d.extension.getSRQNum, s.address, uintptr(unsafe.Pointer(num))); err != nil {
		number(d.lib.destroySRQ, s.address)
		return failed("ibv_get_srq_num", err)
	}
	s.num = *num
	return s.created(attr, &in.attr)
}

// numbered makes what completions name by an index or a number of the library's: any SRQ or
// QP. Of a device whose completions are of version 0 that of an SRQ is its number, of later
// ones SRQs of XRC domains and QPs share the indexes.
func (d *device) numbered(create func() (uintptr, error)) (uintptr, error) {
	d.xrc.RLock()
	defer d.xrc.RUnlock()
	return create()
}

// Num is the number by which requests name an SRQ of an XRC domain.
func (s *srq) Num() uint32 { return s.num }

// target is a QP of an XRC domain, which has no queues.
type target struct {
	domain  *xrcDomain
	address uintptr // struct ibv_qp
	num     uint32
	opened  bool // another one has made it

	// life is held for reading by whoever names the QP in a call, and for
	// writing by who destroys it.
	life   sync.RWMutex
	gone   bool       // guarded by life
	modify sync.Mutex // orders transitions
}

func (x *xrcDomain) CreateQP() (verbs.QPDriver, error) {
	in := &ibvQPInitAttrEx{qpType: int32(verbs.QPTypeXRCTarget), compMask: qpAttrDomain, xrcd: x.address}
	return x.newTarget(&target{domain: x}, "ibv_create_qp_ex", func() (uintptr, error) {
		return handle(x.dev.extension.createQPEx, x.dev.context, uintptr(unsafe.Pointer(in)))
	})
}

func (x *xrcDomain) OpenQP(num uint32) (verbs.QPDriver, error) {
	if x.dev.entry.Driver == "mlx5" && x.dev.lib.commandDestroyQP == 0 {
		return nil, fmt.Errorf("%w: a QP that the library has opened cannot be closed", verbs.ErrUnsupported)
	}
	in := &ibvQPOpenAttr{compMask: openAttrTarget, qpNum: num, xrcd: x.address, qpType: int32(verbs.QPTypeXRCTarget)}
	return x.newTarget(&target{domain: x, opened: true}, "ibv_open_qp", func() (uintptr, error) {
		return handle(x.dev.extension.openQP, x.dev.context, uintptr(unsafe.Pointer(in)))
	})
}

func (x *xrcDomain) newTarget(t *target, function string, create func() (uintptr, error)) (verbs.QPDriver, error) {
	err := x.dev.during(func() error {
		if err := x.life.use(); err != nil {
			return err
		}
		err := t.create(function, create)
		if err != nil {
			x.life.release()
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return t, nil
}

func (t *target) create(function string, create func() (uintptr, error)) (err error) {
	d := t.domain.dev
	if t.address, err = create(); err != nil {
		return failed(function, err)
	}
	v := view[ibvQP](t.address)
	if t.num = v.qpNum; v.context != d.context || v.qpType != int32(verbs.QPTypeXRCTarget) || v.qpNum >= 1<<24 {
		number(d.lib.destroyQP, t.address)
		return unknownLayout("ibv_qp")
	}
	d.add(t.address, t)
	return nil
}

func (t *target) Num() uint32 { return t.num }

// use runs calls that name the QP.
func (t *target) use(f func() error) error {
	return t.domain.dev.during(func() error {
		t.life.RLock()
		defer t.life.RUnlock()
		if t.gone {
			return verbs.ErrClosed
		}
		return f()
	})
}

func (t *target) Modify(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	if t.opened && mask&verbs.QPAttrState != 0 && attr.State == verbs.QPStateReset {
		// libmlx5 then resets a doorbell that only who has made the QP has,
		// and the process dies.
		return fmt.Errorf("%w: an XRC target is taken to RESET by who has made it", verbs.ErrUnsupported)
	}
	return t.use(func() error {
		t.modify.Lock()
		defer t.modify.Unlock()
		in := qpAttr(attr)
		return failed("ibv_modify_qp", status(t.domain.dev.lib.modifyQP, t.address, uintptr(unsafe.Pointer(&in)), uintptr(mask)))
	})
}

func (t *target) Query() (attr verbs.QPAttr, err error) {
	err = t.use(func() error {
		out, init := new(ibvQPAttr), new(ibvQPInitAttr)
		err := status(t.domain.dev.lib.queryQP, t.address, uintptr(unsafe.Pointer(out)), queryMask, uintptr(unsafe.Pointer(init)))
		attr = attrOf(out)
		return failed("ibv_query_qp", err)
	})
	return attr, err
}

func (t *target) PostSend([]verbs.SendWR) (int, error) { return 0, t.refuse() }

func (t *target) PostRecv([]verbs.RecvWR) (int, error) { return 0, t.refuse() }

func (t *target) refuse() error {
	return t.use(func() error { return fmt.Errorf("%w: an XRC target has no queues", verbs.ErrInvalid) })
}

// Destroy closes the QP, which is there as long as another one has it open.
func (t *target) Destroy() error { return t.domain.dev.during(t.destroy) }

func (t *target) rank() int { return rankQP }

func (t *target) destroy() error {
	d := t.domain.dev
	t.life.Lock() // ends with the calls that run
	defer t.life.Unlock()
	if t.gone {
		return verbs.ErrClosed
	}
	d.drop(t.address)
	destroy := d.lib.destroyQP
	if t.opened && d.entry.Driver == "mlx5" {
		// libmlx5 would free the doorbell that it does not have; so it keeps the struct
		// ibv_qp
		destroy = d.lib.commandDestroyQP
	}
	err := failed("ibv_destroy_qp", status(destroy, t.address))
	if d.restore(t.address, t, err) {
		return err
	}
	t.gone = true
	t.domain.life.release()
	return err
}
