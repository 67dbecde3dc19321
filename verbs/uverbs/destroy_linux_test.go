package uverbs

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/siw"
)

// refusingKernel destroys nothing while refuses is set, nor sets limits of SRQs.
type refusingKernel struct {
	*kernelOfHandles
	refuses error
}

func (k *refusingKernel) submit(page []byte, r *abi.Request) error {
	switch r.Cmd {
	case abi.CmdDeallocPD, abi.CmdDestroyCQ, abi.CmdDestroyQP, abi.CmdDestroySRQ, abi.CmdDestroyAH,
		abi.CmdDeregMR, abi.CmdDeallocMW, abi.CmdCloseXRCDomain, abi.CmdModifySRQ:
		if k.refuses != nil {
			return k.refuses
		}
	case abi.CmdCreateSRQ:
		*abi.ViewAt[abi.CreateSRQOut](r.Out, 0) = abi.CreateSRQOut{MaxWR: 4, MaxSGE: 1}
		siwMakesSRQ(r.UdataOut, 4)
		return nil
	}
	return k.kernelOfHandles.submit(page, r)
}

// countingMemory counts what is unmapped.
type countingMemory struct {
	sharedMemory
	unmapped *int
}

func (m countingMemory) Unmap([]byte) { *m.unmapped++ }

// refusable are a CQ, a QP, an SRQ and a region of a device whose kernel may refuse to destroy them.
type refusable struct {
	objectsOfTest
	kernel   *refusingKernel
	unmapped int
	qp       *qp
	srq      *srq
	mr       *region
}

func newRefusable(t *testing.T) *refusable {
	t.Helper()
	o := &refusable{objectsOfTest: newObjects(t)}
	require.NoError(t, o.cq.Destroy())
	d := o.pd.dev
	var err error
	d.driver, err = siw.Driver{}.Open(countingMemory{o.mem, &o.unmapped}, func(driver.Udata) error { return nil })
	require.NoError(t, err)
	o.kernel = &refusingKernel{kernelOfHandles: o.objectsOfTest.kernel}
	d.submit = o.kernel.submit
	c, err := d.CreateCQ(&verbs.CQAttr{CQE: 8}, nil)
	require.NoError(t, err)
	o.cq = c.(*cq)
	o.qp = o.newQP(t)
	s, err := o.pd.CreateSRQ(&verbs.SRQAttr{MaxWR: 4, MaxSGE: 1})
	require.NoError(t, err)
	o.srq = s.(*srq)
	mr, err := o.pd.AllocMR(4096, verbs.AccessLocalWrite|verbs.AccessRemoteWrite, verbs.MROptions{})
	require.NoError(t, err)
	o.mr = mr.(*region)
	return o
}

// all are the objects that a command destroys, in an order in which that is possible.
func (o *refusable) all(t *testing.T) (list []destroyable) {
	t.Helper()
	d := o.pd.dev
	mw, err := o.pd.AllocMW(verbs.MWType2)
	require.NoError(t, err)
	x := &target{dev: d, handle: o.kernel.make(abi.CmdCreateQP)}
	x.id, err = d.add(x)
	require.NoError(t, err)
	return []destroyable{
		{"MW", mw.Dealloc}, {"QP", o.qp.Destroy}, {"XRC target", x.Destroy}, {"SRQ", o.srq.Destroy}, {"MR", o.mr.Deregister},
		{"AH", (&ah{dev: d}).Destroy}, {"CQ", o.cq.Destroy}, {"XRC domain", (&xrcDomain{dev: d}).Close}, {"PD", o.pd.Dealloc},
	}
}

type destroyable struct {
	name string
	by   func() error
}

// A process that gives commands by write(2), and has changed its user since, can destroy nothing;
// and any command may find no memory in the kernel.
func TestWhatTheKernelHasNotDestroyedIsStillThere(t *testing.T) {
	o := newRefusable(t)
	d := o.pd.dev
	list := o.all(t)
	o.kernel.refuses = unix.EACCES
	for range 2 {
		for _, object := range list {
			if object.name == "CQ" {
				continue // it has a QP
			}
			require.ErrorIs(t, object.by(), unix.EACCES, object.name)
		}
	}
	require.ErrorIs(t, o.cq.Destroy(), verbs.ErrBusy)
	require.Zero(t, o.unmapped, "the kernel, or the device, may still write there")
	require.NotNil(t, o.mr.owned)
	for _, is := range []object{o.qp, o.srq, o.cq, o.mr} {
		require.Contains(t, d.all(), is)
	}

	// They can be used as before.
	_, err := o.qp.Query()
	require.NoError(t, err)
	o.qp.state.Store(uint32(verbs.QPStateRTS))
	n, err := o.qp.PostRecv(make([]verbs.RecvWR, 1))
	require.NoError(t, err)
	require.Equal(t, 1, n)
	n, err = o.srq.PostRecv(make([]verbs.RecvWR, 1))
	require.NoError(t, err)
	require.Equal(t, 1, n)
	siwCompletes(o.mem, 0, 1, o.qp.num, 0)
	n, err = o.cq.Poll(make([]verbs.WC, 4))
	require.NoError(t, err)
	require.Equal(t, 1, n, "completions of the QP are no stranger's")

	for _, object := range list {
		o.kernel.refuses = unix.ENOMEM
		require.ErrorIs(t, object.by(), unix.ENOMEM, object.name)
		o.kernel.refuses = nil
		require.NoError(t, object.by(), object.name)
		require.ErrorIs(t, object.by(), verbs.ErrClosed, object.name)
	}
	require.Equal(t, 4, o.unmapped, "of the CQ and the SRQ, and two of the QP")
	require.Nil(t, o.mr.owned)
	require.Empty(t, d.all())
}

func TestWhatTheKernelHasNotDestroyedGoesWithTheDevice(t *testing.T) {
	o := newRefusable(t)
	o.kernel.refuses = unix.EACCES
	require.ErrorIs(t, o.qp.Destroy(), unix.EACCES)
	require.ErrorIs(t, o.srq.Destroy(), unix.EACCES)
	require.ErrorIs(t, o.mr.Deregister(), unix.EACCES)
	require.Zero(t, o.unmapped)
	for _, object := range o.pd.dev.all() {
		object.abandon() // as Close of the device does
	}
	require.Equal(t, 4, o.unmapped)
	require.Nil(t, o.mr.owned)
	require.ErrorIs(t, o.qp.Destroy(), verbs.ErrClosed)
	require.ErrorIs(t, o.srq.Destroy(), verbs.ErrClosed)
	require.ErrorIs(t, o.cq.Destroy(), verbs.ErrClosed)
	require.ErrorIs(t, o.mr.Deregister(), verbs.ErrClosed)
}

func TestWhatIsMadeInVainAndNotDestroyedKeepsItsMemory(t *testing.T) {
	o := newRefusable(t)
	d := o.pd.dev
	before := len(d.all())
	o.kernel.refuses = unix.EACCES // MODIFY_SRQ too
	_, err := o.pd.CreateSRQ(&verbs.SRQAttr{MaxWR: 4, MaxSGE: 1, Limit: 1})
	require.ErrorIs(t, err, unix.EACCES)
	require.Zero(t, o.unmapped)
	require.Len(t, d.all(), before+1, "nobody unmaps it when the device is closed, which keeps the kernel's context")
	o.kernel.refuses = nil
	d.submit = func(page []byte, r *abi.Request) error {
		if r.Cmd == abi.CmdModifySRQ {
			return unix.EINVAL
		}
		return o.kernel.submit(page, r)
	}
	_, err = o.pd.CreateSRQ(&verbs.SRQAttr{MaxWR: 4, MaxSGE: 1, Limit: 1})
	require.ErrorIs(t, err, unix.EINVAL)
	require.Equal(t, 1, o.unmapped)
	require.Len(t, d.all(), before+1)
}

// The kernel lets go of all that a device had which is removed, and answers EIO to commands but those
// that destroy (core/rdma_core.c, rdma_lookup_get_uobject). EIO to these says the same.
func TestWhatADeviceHadThatWasRemovedIsGone(t *testing.T) {
	o := newRefusable(t)
	d := o.pd.dev
	list := o.all(t)
	mem, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	require.NoError(t, err)
	defer mem.Close()
	d.file.FD, d.file.ByWrite = int(mem.Fd()), true // it answers EIO, for nothing is mapped at 0
	o.kernel.refuses = unix.EIO
	for _, object := range list {
		require.ErrorIs(t, object.by(), errGone, object.name)
		require.ErrorIs(t, object.by(), verbs.ErrClosed, object.name)
	}
	require.Equal(t, 4, o.unmapped)
	require.Nil(t, o.mr.owned)
	require.Empty(t, d.all())
}
