package uverbs

import (
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
)

// xrcDriver is the driver of a device with XRC domains, whose completions a test puts into its CQs.
type xrcDriver struct {
	driver.Context
	wcs    []verbs.WC
	mapped map[uint32]bool // SRQs, by number
}

type xrcCQ struct {
	driver.CQ
	of *xrcDriver
}

func (d *xrcDriver) Udata(abi.Command) driver.Udata { return driver.Udata{} }

func (d *xrcDriver) CreateCQ(cqe int, create func(int, driver.Udata) error) (driver.CQ, error) {
	return xrcCQ{of: d}, create(cqe, driver.Udata{})
}

func (d *xrcDriver) CreateXRCSRQ(attr verbs.SRQAttr, create func(driver.Udata) (uint32, error)) (driver.SRQ, error) {
	num, err := create(driver.Udata{In: []byte{0xab}})
	if err != nil {
		return nil, err
	}
	if d.mapped == nil {
		d.mapped = make(map[uint32]bool)
	}
	d.mapped[num] = true
	return xrcQueue{of: d, num: num}, nil
}

// Poll knows the completions of an SRQ as long as it is mapped, as that of a ConnectX does whose
// completions are of version 0.
func (c xrcCQ) Poll(wcs []verbs.WC, _ driver.QPs) (int, error) {
	n := copy(wcs, c.of.wcs)
	c.of.wcs = c.of.wcs[n:]
	for i := range wcs[:n] {
		if wc := &wcs[i]; wc.Flags&driver.OfXRC != 0 && !c.of.mapped[wc.SrcQPN] {
			wc.Flags, wc.SrcQPN = wc.Flags&^driver.OfXRC, 0
		}
	}
	return n, nil
}

func (xrcCQ) Unmap() {}

type xrcQueue struct {
	driver.SRQ
	of  *xrcDriver
	num uint32
}

func (xrcQueue) Capacity() int { return 7 }

func (xrcQueue) Modify(_ verbs.SRQAttr, _ verbs.SRQAttrMask, modify func([]byte) error) error {
	return modify(nil)
}

func (q xrcQueue) Unmap() { delete(q.of.mapped, q.num) }

// xrcKernel keeps the commands that it is given, and answers them.
type xrcKernel struct {
	mu       sync.Mutex
	commands []abi.Request // guarded by mu
	errno    error         // guarded by mu: of the next command
	srqs     uint32        // guarded by mu: added to the number of the next SRQ
}

func (k *xrcKernel) submit(_ []byte, r *abi.Request) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	kept := *r
	kept.In = append([]byte(nil), r.In...)
	k.commands = append(k.commands, kept)
	if err := k.errno; err != nil {
		k.errno = nil
		return err
	}
	switch r.Cmd {
	case abi.CmdOpenXRCDomain:
		abi.ViewAt[abi.OpenXRCDomainOut](r.Out, 0).Handle = 11
	case abi.CmdAllocPD:
		abi.ViewAt[abi.AllocPDOut](r.Out, 0).Handle = 12
	case abi.CmdCreateCQ:
		*abi.ViewAt[abi.CreateCQOut](r.Out, 0) = abi.CreateCQOut{Handle: 13, CQE: 16}
	case abi.CmdCreateXSRQ:
		*abi.ViewAt[abi.CreateSRQOut](r.Out, 0) = abi.CreateSRQOut{Handle: 14, MaxWR: 7, MaxSGE: 2, Num: 0x51 + k.srqs}
	case abi.CmdCreateQP, abi.CmdOpenQP:
		*abi.ViewAt[abi.CreateQPOut](r.Out, 0) = abi.CreateQPOut{Handle: 15, QPN: 0x99}
	case abi.CmdQueryQP:
		abi.ViewAt[abi.QueryQPOut](r.Out, 0).QPState = uint8(verbs.QPStateRTR)
	}
	return nil
}

// last is the last command, which must be cmd.
func (k *xrcKernel) last(t *testing.T, cmd abi.Command) abi.Request {
	t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	r := k.commands[len(k.commands)-1]
	require.Equal(t, cmd, r.Cmd)
	return r
}

func xrcDevice(t *testing.T) (*device, *xrcDriver, *xrcKernel) {
	t.Helper()
	d, drv, k := deviceWithoutFile(t), &xrcDriver{}, &xrcKernel{}
	d.driver, d.submit = drv, k.submit
	return d, drv, k
}

func TestXRCDomainsAreOpenedByTheirFile(t *testing.T) {
	d, _, k := xrcDevice(t)
	x, err := d.OpenXRCDomain(nil)
	require.NoError(t, err)
	in := abi.ViewAt[abi.OpenXRCDomainIn](k.last(t, abi.CmdOpenXRCDomain).In, 0)
	require.EqualValues(t, -1, in.FD)
	require.NoError(t, x.Close())
	require.EqualValues(t, 11, abi.ViewAt[abi.HandleOnly](k.last(t, abi.CmdCloseXRCDomain).In, 0).Handle)
	require.ErrorIs(t, x.Close(), verbs.ErrClosed)

	file, err := os.Create(filepath.Join(t.TempDir(), "domain"))
	require.NoError(t, err)
	x, err = d.OpenXRCDomain(file)
	require.NoError(t, err)
	in = abi.ViewAt[abi.OpenXRCDomainIn](k.last(t, abi.CmdOpenXRCDomain).In, 0)
	require.EqualValues(t, file.Fd(), in.FD)
	require.EqualValues(t, unix.O_CREAT, in.Flags)
	k.errno = unix.EBUSY
	require.ErrorIs(t, x.Close(), verbs.ErrBusy)
	require.NoError(t, x.Close())

	require.NoError(t, file.Close())
	x, err = d.OpenXRCDomain(file)
	require.ErrorIs(t, err, verbs.ErrInvalid)
	require.Nil(t, x)
	k.errno = unix.EOPNOTSUPP
	_, err = d.OpenXRCDomain(nil)
	require.ErrorIs(t, err, verbs.ErrUnsupported)
}

// xrcObjects makes a domain with an SRQ.
func xrcObjects(t *testing.T, d *device) (verbs.XRCDomainDriver, verbs.CQDriver, verbs.XRCSRQDriver) {
	t.Helper()
	x, err := d.OpenXRCDomain(nil)
	require.NoError(t, err)
	p, err := d.AllocPD()
	require.NoError(t, err)
	c, err := d.CreateCQ(&verbs.CQAttr{CQE: 16}, nil)
	require.NoError(t, err)
	s, err := x.CreateSRQ(p, c, &verbs.SRQAttr{MaxWR: 5, MaxSGE: 2, Limit: 3})
	require.NoError(t, err)
	return x, c, s
}

func TestAnSRQOfAnXRCDomainHasItsCQAndItsNumber(t *testing.T) {
	d, drv, k := xrcDevice(t)
	x, c, s := xrcObjects(t, d)
	limit := abi.ModifySRQIn{Handle: 14, AttrMask: uint32(verbs.SRQAttrLimit), MaxWR: 7, Limit: 3}
	require.Equal(t, limit, *abi.ViewAt[abi.ModifySRQIn](k.last(t, abi.CmdModifySRQ).In, 0), "the driver may not look at that of CREATE_XSRQ")
	r := k.commands[len(k.commands)-2]
	require.Equal(t, abi.CmdCreateXSRQ, r.Cmd)
	require.Equal(t, []byte{0xab}, r.UdataIn)
	require.Equal(t, abi.CreateXSRQIn{
		UserHandle: s.(*srq).id, Type: 1, PDHandle: 12, MaxWR: 5, MaxSGE: 2, Limit: 3, DomainHandle: 11, CQHandle: 13,
	}, *abi.ViewAt[abi.CreateXSRQIn](r.In, 0))
	require.EqualValues(t, 0x51, s.Num())
	require.ErrorIs(t, c.Destroy(), verbs.ErrBusy, "receives complete there")

	// The QP of a completion may be another process's, or have the number of one of ours.
	q := &qp{dev: d, num: 0x99, rc: true}
	c.(*cq).attach(q)
	drv.wcs = []verbs.WC{{ID: 1, QPN: 0x1234, SrcQPN: 0x51, Opcode: verbs.WCRecv, Flags: driver.OfXRC | verbs.WCWithImm},
		{ID: 2, QPN: 0x1234, Opcode: verbs.WCRecv},
		{ID: 3, QPN: 0x99, SrcQPN: 0x51, Opcode: verbs.WCRecv, Flags: driver.OfXRC, Status: verbs.WCLocLenErr}}
	wcs := make([]verbs.WC, 4)
	n, err := c.Poll(wcs)
	require.NoError(t, err)
	require.Equal(t, []verbs.WC{{ID: 1, QPN: 0x1234, Opcode: verbs.WCRecv, Flags: verbs.WCWithImm},
		{ID: 3, QPN: 0x99, Opcode: verbs.WCRecv, Status: verbs.WCLocLenErr}}, wcs[:n])
	require.Zero(t, q.recvDone.Load())
	drv.wcs = []verbs.WC{{ID: 4, QPN: 0x99, SrcQPN: 0x51, Opcode: verbs.WCRecv, Flags: driver.OfXRC}, {ID: 5, QPN: 0x99, Opcode: verbs.WCRecv}}
	c.(*cq).gather()
	c.(*cq).purge(q, true)
	n, err = c.Poll(wcs)
	require.NoError(t, err)
	require.Equal(t, []verbs.WC{{ID: 4, QPN: 0x99, Opcode: verbs.WCRecv}}, wcs[:n], "it is not the QP's")

	require.NoError(t, s.Destroy())
	require.EqualValues(t, 14, abi.ViewAt[abi.DestroyIn](k.last(t, abi.CmdDestroySRQ).In, 0).Handle)
	require.NoError(t, c.Destroy())
	require.NoError(t, x.Close())

	_, err = x.CreateSRQ(&pd{dev: d}, c, &verbs.SRQAttr{MaxWR: 1})
	require.ErrorIs(t, err, verbs.ErrClosed)
	other, _, _ := xrcDevice(t)
	_, err = x.CreateSRQ(&pd{dev: other}, c, &verbs.SRQAttr{MaxWR: 1})
	require.ErrorIs(t, err, verbs.ErrInvalid)
	_, err = x.CreateSRQ(&pd{dev: d}, &cq{dev: other}, &verbs.SRQAttr{MaxWR: 1})
	require.ErrorIs(t, err, verbs.ErrInvalid)
}

func TestCompletionsOfADestroyedXRCSRQAreDropped(t *testing.T) {
	for name, kept := range map[string]int{"in the queue": 0, "kept": 10, "kept and in the queue": 16} {
		t.Run(name, func(t *testing.T) {
			d, drv, k := xrcDevice(t)
			x, c, s := xrcObjects(t, d)
			p, err := d.AllocPD()
			require.NoError(t, err)
			k.srqs = 1
			other, err := x.CreateSRQ(p, c, &verbs.SRQAttr{MaxWR: 5})
			require.NoError(t, err)
			// the kernel has given it the number of the target by which they came
			q := &qp{dev: d, num: 0x99, rc: true}
			c.(*cq).attach(q)
			for i := range uint64(16) {
				wc := verbs.WC{ID: i, QPN: 0x99, SrcQPN: s.Num(), Opcode: verbs.WCRecv, Flags: driver.OfXRC}
				if i%8 == 3 {
					wc.SrcQPN = other.Num()
				}
				drv.wcs = append(drv.wcs, wc)
			}
			late := append([]verbs.WC{{ID: 100, QPN: 0x99, SrcQPN: other.Num(), Opcode: verbs.WCRecv, Flags: driver.OfXRC}}, drv.wcs[kept:]...)
			if kept > 0 {
				drv.wcs = drv.wcs[:kept]
				c.(*cq).gather() // as a QP does whose send queue is full
				require.Len(t, c.(*cq).kept, kept)
			}
			if kept == 16 { // as many as the CQ has room for, so the rest stays in the queue
				late = append(late, verbs.WC{ID: 101, QPN: 0x99, SrcQPN: s.Num(), Opcode: verbs.WCRecv, Flags: driver.OfXRC})
			}
			drv.wcs = late
			require.NoError(t, s.Destroy())
			k.srqs = 0
			again, err := x.CreateSRQ(p, c, &verbs.SRQAttr{MaxWR: 5})
			require.NoError(t, err)
			require.Equal(t, s.Num(), again.Num())
			var ids []uint64
			for wcs := make([]verbs.WC, 32); ; {
				n, err := c.Poll(wcs)
				require.NoError(t, err)
				if n == 0 {
					break
				}
				for _, wc := range wcs[:n] {
					require.Equal(t, verbs.WC{ID: wc.ID, QPN: 0x99, Opcode: verbs.WCRecv}, wc)
					ids = append(ids, wc.ID)
				}
			}
			require.ElementsMatch(t, []uint64{3, 11, 100}, ids, "those of the other SRQ")
			require.Zero(t, q.recvDone.Load(), "they are no QP's")
		})
	}
}

func TestNoSRQGetsTheNumberOfOneWhoseCompletionsAreThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _, k := xrcDevice(t)
		x, c, s := xrcObjects(t, d)
		p, err := d.AllocPD()
		require.NoError(t, err)
		var made atomic.Bool
		early, ended := false, make(chan error, 1)
		d.submit = func(in []byte, r *abi.Request) error {
			err := k.submit(in, r)
			if r.Cmd == abi.CmdDestroySRQ { // the kernel gives its number away at once
				go func() {
					_, err := x.CreateSRQ(p, c, &verbs.SRQAttr{MaxWR: 5})
					made.Store(true)
					ended <- err
				}()
				synctest.Wait()
				early = made.Load()
			}
			return err
		}
		require.NoError(t, s.Destroy())
		require.NoError(t, <-ended)
		require.False(t, early)
	})
}

func TestAnSRQOfAnXRCDomainThatIsNotMadeHoldsNothing(t *testing.T) {
	d, _, k := xrcDevice(t)
	x, c, s := xrcObjects(t, d)
	require.NoError(t, s.Destroy())
	objects := len(d.objects)
	p, err := d.AllocPD()
	require.NoError(t, err)
	k.errno = unix.ENOMEM
	_, err = x.CreateSRQ(p, c, &verbs.SRQAttr{MaxWR: 5})
	require.ErrorIs(t, err, unix.ENOMEM)
	require.Len(t, d.objects, objects)
	require.NoError(t, c.Destroy())
}

func TestTargetsOfXRCAreMovedAskedAndDestroyed(t *testing.T) {
	for _, opened := range []bool{false, true} {
		d, _, k := xrcDevice(t)
		x, err := d.OpenXRCDomain(nil)
		require.NoError(t, err)
		var q verbs.QPDriver
		if opened {
			q, err = x.OpenQP(0x99)
			require.Equal(t, abi.OpenQPIn{UserHandle: 1, DomainHandle: 11, QPN: 0x99, QPType: 10}, *abi.ViewAt[abi.OpenQPIn](k.last(t, abi.CmdOpenQP).In, 0))
		} else {
			q, err = x.CreateQP()
			require.Equal(t, abi.CreateQPIn{UserHandle: 1, PDHandle: 11, QPType: 10}, *abi.ViewAt[abi.CreateQPIn](k.last(t, abi.CmdCreateQP).In, 0))
		}
		require.NoError(t, err)
		require.EqualValues(t, 0x99, q.Num())
		require.NoError(t, q.Modify(&verbs.QPAttr{State: verbs.QPStateInit}, verbs.QPAttrState))
		require.EqualValues(t, 15, abi.ViewAt[abi.ModifyQPIn](k.last(t, abi.CmdModifyQP).In, 0).Handle)
		attr, err := q.Query()
		require.NoError(t, err)
		require.Equal(t, verbs.QPStateRTR, attr.State)
		_, err = q.PostSend([]verbs.SendWR{{}})
		require.ErrorIs(t, err, verbs.ErrInvalid)
		_, err = q.PostRecv([]verbs.RecvWR{{}})
		require.ErrorIs(t, err, verbs.ErrInvalid)

		d.takeEvent(abi.AsyncEventDesc{Element: 1, EventType: uint32(verbs.EventQPFatal)})
		ev, err := d.NextEvent()
		require.NoError(t, err)
		require.Equal(t, verbs.DriverEvent{Type: verbs.EventQPFatal, QPN: 0x99}, ev)

		k.errno = unix.EBUSY
		require.ErrorIs(t, q.Destroy(), verbs.ErrBusy)
		require.NoError(t, q.Destroy())
		require.EqualValues(t, 15, abi.ViewAt[abi.DestroyIn](k.last(t, abi.CmdDestroyQP).In, 0).Handle)
		require.ErrorIs(t, q.Destroy(), verbs.ErrClosed)
		_, err = q.Query()
		require.ErrorIs(t, err, verbs.ErrClosed)
		_, err = q.PostSend(nil)
		require.ErrorIs(t, err, verbs.ErrClosed)
		require.Empty(t, d.objects)
	}
}

func TestADomainHasNoQPOfThatNumber(t *testing.T) {
	d, _, k := xrcDevice(t)
	x, err := d.OpenXRCDomain(nil)
	require.NoError(t, err)
	k.errno = unix.EINVAL
	_, err = x.OpenQP(1)
	require.ErrorIs(t, err, verbs.ErrInvalid)
	require.Empty(t, d.objects)
	require.NoError(t, x.Close())
	_, err = x.CreateQP()
	require.ErrorIs(t, err, verbs.ErrClosed)
}

func TestADeviceHasXRCIfItsKernelAndItsDriverDo(t *testing.T) {
	d, _, _ := xrcDevice(t)
	require.Zero(t, d.probe(&verbs.DeviceAttr{})&verbs.CapXRC)
	require.NotZero(t, d.probe(&verbs.DeviceAttr{KernelCaps: abi.KernelCapXRC})&verbs.CapXRC)
	other := deviceWithoutFile(t) // with the driver rxe
	require.Zero(t, other.probe(&verbs.DeviceAttr{KernelCaps: abi.KernelCapXRC})&verbs.CapXRC)
}
