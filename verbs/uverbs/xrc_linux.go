package uverbs

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
)

// xrcDomain is an XRC domain. The kernel counts what uses it.
type xrcDomain struct {
	dev    *device
	handle uint32
	end    ending
}

func (d *device) OpenXRCDomain(file *os.File) (verbs.XRCDomainDriver, error) {
	open := func(fd int32) (verbs.XRCDomainDriver, error) {
		var out abi.OpenXRCDomainOut
		in := abi.OpenXRCDomainIn{FD: fd, Flags: unix.O_CREAT}
		if err := d.command(abi.CmdOpenXRCDomain, abi.BytesOf(&in), abi.BytesOf(&out)); err != nil {
			return nil, err
		}
		return &xrcDomain{dev: d, handle: out.Handle}, nil
	}
	if file == nil {
		return open(-1)
	}
	var x verbs.XRCDomainDriver
	var openErr error
	conn, err := file.SyscallConn()
	if err == nil {
		err = conn.Control(func(fd uintptr) { x, openErr = open(int32(fd)) })
	}
	if err != nil {
		return nil, fmt.Errorf("%w: the file of an XRC domain: %w", verbs.ErrInvalid, err)
	}
	return x, openErr
}

func (x *xrcDomain) Close() error {
	return x.end.once(func() error {
		return x.dev.command(abi.CmdCloseXRCDomain, abi.BytesOf(&abi.HandleOnly{Handle: x.handle}), nil)
	})
}

// CreateSRQ makes an SRQ, to which the CQ belongs as it does to QPs.
func (x *xrcDomain) CreateSRQ(of verbs.PDDriver, completions verbs.CQDriver, attr *verbs.SRQAttr) (verbs.XRCSRQDriver, error) {
	p, ok := of.(*pd)
	if !ok || p.dev != x.dev {
		return nil, fmt.Errorf("%w: PD of another device", verbs.ErrInvalid)
	}
	c, ok := completions.(*cq)
	if !ok || c.dev != x.dev {
		return nil, fmt.Errorf("%w: CQ of another device", verbs.ErrInvalid)
	}
	ctx, ok := x.dev.driver.(driver.XRCContext)
	if !ok {
		return nil, verbs.ErrUnsupported
	}
	s := &srq{dev: x.dev, cq: c}
	in := abi.CreateXSRQIn{Type: abi.SRQTypeXRC, PDHandle: p.handle, DomainHandle: x.handle, CQHandle: c.handle}
	err := s.createOn([]*ending{&x.end, &p.end, &c.end}, func() error {
		in.UserHandle = s.id
		return s.createXRC(ctx, attr, &in)
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (s *srq) createXRC(ctx driver.XRCContext, attr *verbs.SRQAttr, in *abi.CreateXSRQIn) error {
	in.MaxWR, in.MaxSGE, in.Limit = uint32(attr.MaxWR), uint32(max(attr.MaxSGE, 1)), uint32(attr.Limit)
	err := s.create(attr, func(wanted verbs.SRQAttr, create func(driver.Udata) (verbs.SRQAttr, error)) (driver.SRQ, error) {
		return ctx.CreateXRCSRQ(wanted, func(u driver.Udata) (uint32, error) {
			_, err := create(u)
			s.dev.srqNumbers.await(s.num)
			return s.num, err
		})
	}, abi.CmdCreateXSRQ, abi.BytesOf(in))
	if err == nil {
		s.cq.attachSRQ()
	}
	return err
}

// Num is the number by which requests name the SRQ.
func (s *srq) Num() uint32 { return s.num }

// target is a QP of an XRC domain, which has no queues.
type target struct {
	dev    *device
	id     uint64
	num    uint32
	handle uint32

	// life is held for reading by whoever names the QP in a command, and for writing by the one
	// that makes it or destroys it, as that of other QPs.
	life sync.RWMutex
	gone bool // guarded by life
}

func (x *xrcDomain) CreateQP() (verbs.QPDriver, error) {
	return x.newTarget(func(id uint64) (out abi.CreateQPOut, err error) {
		in := abi.CreateQPIn{UserHandle: id, PDHandle: x.handle, QPType: uint8(verbs.QPTypeXRCTarget)}
		return out, x.dev.command(abi.CmdCreateQP, abi.BytesOf(&in), abi.BytesOf(&out))
	})
}

func (x *xrcDomain) OpenQP(num uint32) (verbs.QPDriver, error) {
	return x.newTarget(func(id uint64) (out abi.CreateQPOut, err error) {
		in := abi.OpenQPIn{UserHandle: id, DomainHandle: x.handle, QPN: num, QPType: uint8(verbs.QPTypeXRCTarget)}
		return out, x.dev.command(abi.CmdOpenQP, abi.BytesOf(&in), abi.BytesOf(&out))
	})
}

func (x *xrcDomain) newTarget(create func(id uint64) (abi.CreateQPOut, error)) (verbs.QPDriver, error) {
	t := &target{dev: x.dev}
	t.life.Lock() // an event of it that comes before it is made waits
	defer t.life.Unlock()
	var err error
	if t.id, err = x.dev.add(t); err != nil {
		return nil, err
	}
	err = x.end.use(func() error {
		out, err := create(t.id)
		t.handle, t.num = out.Handle, out.QPN
		return err
	})
	if err != nil {
		t.gone = true
		x.dev.drop(t.id)
		return nil, err
	}
	return t, nil
}

func (t *target) Num() uint32 { return t.num }

func (t *target) Modify(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	t.life.RLock()
	defer t.life.RUnlock()
	if t.gone {
		return verbs.ErrClosed
	}
	in := modifyQP(attr, mask)
	in.Handle = t.handle
	return t.dev.command(abi.CmdModifyQP, abi.BytesOf(&in), nil)
}

func (t *target) Query() (verbs.QPAttr, error) {
	t.life.RLock()
	defer t.life.RUnlock()
	if t.gone {
		return verbs.QPAttr{}, verbs.ErrClosed
	}
	var out abi.QueryQPOut
	in := abi.QueryQPIn{Handle: t.handle, AttrMask: queryMask}
	if err := t.dev.command(abi.CmdQueryQP, abi.BytesOf(&in), abi.BytesOf(&out)); err != nil {
		return verbs.QPAttr{}, err
	}
	return attrOf(&out), nil
}

var errNoQueue = fmt.Errorf("%w: an XRC target has no queues", verbs.ErrInvalid)

func (t *target) PostSend([]verbs.SendWR) (int, error) { return 0, t.refuse() }

func (t *target) PostRecv([]verbs.RecvWR) (int, error) { return 0, t.refuse() }

func (t *target) refuse() error {
	t.life.RLock()
	defer t.life.RUnlock()
	if t.gone {
		return verbs.ErrClosed
	}
	return errNoQueue
}

func (t *target) Destroy() error {
	t.life.Lock()
	defer t.life.Unlock()
	if t.gone {
		return verbs.ErrClosed
	}
	err := t.dev.command(abi.CmdDestroyQP, abi.BytesOf(&abi.DestroyIn{Handle: t.handle}), abi.BytesOf(&abi.DestroyQPOut{}))
	if !destroyed(err) {
		return err
	}
	t.gone = true
	t.dev.drop(t.id)
	return err
}

func (t *target) abandon() {
	t.life.Lock()
	defer t.life.Unlock()
	t.gone = true
}

// number returns the QP's number if it is there.
func (t *target) number() (num uint32, ok bool) {
	t.life.RLock() // ends with the command that makes it, or destroys it
	defer t.life.RUnlock()
	return t.num, !t.gone
}
