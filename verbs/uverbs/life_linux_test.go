package uverbs

import (
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/internal/pages"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/siw"
)

// kernelOfHandles answers commands as the kernel does: what is made gets the
// lowest handle, and a QP the lowest number, that is free; an object that a
// running command names cannot be destroyed.
type kernelOfHandles struct {
	mu    sync.Mutex
	made  map[handleOf]int           // guarded by mu: what is there, and how many commands name it
	named map[handleOf][]abi.Command // guarded by mu: the commands that named it since it was made
	// refused counts, guarded by mu, the commands that were to destroy what
	// another one named.
	refused int
	// begins and ends are called, without mu, when a command has begun and
	// before it returns. Set before there are others.
	begins, ends func(abi.Command)
}

// handleOf is a handle of a kind of objects: that of the command that makes them.
type handleOf struct {
	kind   abi.Command
	handle uint32
}

const firstQPN = 17

func (k *kernelOfHandles) submit(_ []byte, r *abi.Request) error {
	var names []handleOf
	destroys := false
	switch r.Cmd {
	case abi.CmdCreateQP:
		in := abi.ViewAt[abi.CreateQPIn](r.In, 0)
		names = []handleOf{{abi.CmdAllocPD, in.PDHandle}, {abi.CmdCreateCQ, in.SendCQ}, {abi.CmdCreateCQ, in.RecvCQ}}
	case abi.CmdModifyQP:
		names = []handleOf{{abi.CmdCreateQP, abi.ViewAt[abi.ModifyQPIn](r.In, 0).Handle}}
	case abi.CmdQueryQP:
		names = []handleOf{{abi.CmdCreateQP, abi.ViewAt[abi.QueryQPIn](r.In, 0).Handle}}
	case abi.CmdDestroyQP:
		names, destroys = []handleOf{{abi.CmdCreateQP, abi.ViewAt[abi.DestroyIn](r.In, 0).Handle}}, true
	case abi.CmdDestroyCQ:
		names, destroys = []handleOf{{abi.CmdCreateCQ, abi.ViewAt[abi.DestroyIn](r.In, 0).Handle}}, true
	case abi.CmdDeallocPD:
		names, destroys = []handleOf{{abi.CmdAllocPD, abi.ViewAt[abi.HandleOnly](r.In, 0).Handle}}, true
	}
	if err := k.enter(r.Cmd, names, destroys); err != nil {
		return err
	}
	if k.begins != nil {
		k.begins(r.Cmd)
	}
	k.leave(names, destroys)
	switch r.Cmd {
	case abi.CmdAllocPD:
		abi.ViewAt[abi.AllocPDOut](r.Out, 0).Handle = k.make(r.Cmd)
	case abi.CmdCreateCQ:
		*abi.ViewAt[abi.CreateCQOut](r.Out, 0) = abi.CreateCQOut{Handle: k.make(r.Cmd), CQE: 8}
		siwMakesCQ(r.UdataOut, 8)
	case abi.CmdCreateQP:
		handle := k.make(r.Cmd)
		*abi.ViewAt[abi.CreateQPOut](r.Out, 0) = abi.CreateQPOut{Handle: handle, QPN: firstQPN + handle, MaxSendWR: 4, MaxRecvWR: 4}
		siwMakesQP(r.UdataOut, 4)
	}
	if k.ends != nil {
		k.ends(r.Cmd)
	}
	return nil
}

func (k *kernelOfHandles) enter(cmd abi.Command, names []handleOf, destroys bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, h := range names {
		users, is := k.made[h]
		switch {
		case !is:
			return unix.EINVAL
		case destroys && users > 0:
			k.refused++
			return unix.EBUSY
		}
	}
	for _, h := range names {
		k.made[h]++
		k.named[h] = append(k.named[h], cmd)
	}
	return nil
}

func (k *kernelOfHandles) leave(names []handleOf, destroys bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, h := range names {
		k.made[h]--
		if destroys {
			delete(k.made, h)
		}
	}
}

func (k *kernelOfHandles) make(kind abi.Command) uint32 {
	k.mu.Lock()
	defer k.mu.Unlock()
	h := handleOf{kind: kind}
	for ; ; h.handle++ {
		if _, is := k.made[h]; !is {
			k.made[h], k.named[h] = 0, nil
			return h.handle
		}
	}
}

// commandsOf returns the commands that have named the QP.
func (k *kernelOfHandles) commandsOf(handle uint32) []abi.Command {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.named[handleOf{abi.CmdCreateQP, handle}]
}

// objectsOfTest are a PD and a CQ on a siw device of a kernel of the test.
type objectsOfTest struct {
	mem    sharedMemory
	kernel *kernelOfHandles
	pd     *pd
	cq     *cq
}

func newObjects(t *testing.T) objectsOfTest {
	t.Helper()
	d, _ := recordingDevice(t)
	k := &kernelOfHandles{made: make(map[handleOf]int), named: make(map[handleOf][]abi.Command)}
	mem := newSiwMemory(8)
	d.driver, d.submit = mem.context(t, siw.Driver{}), k.submit
	p, err := d.allocPD()
	require.NoError(t, err)
	c, err := d.CreateCQ(&verbs.CQAttr{CQE: 8}, nil)
	require.NoError(t, err)
	return objectsOfTest{mem: mem, kernel: k, pd: p, cq: c.(*cq)}
}

func (o objectsOfTest) createQP() (*qp, error) {
	q, err := o.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.QPTypeRC, Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4}}, o.cq, o.cq, nil)
	if err != nil {
		return nil, err
	}
	return q.(*qp), nil
}

func (o objectsOfTest) newQP(t *testing.T) *qp {
	t.Helper()
	q, err := o.createQP()
	require.NoError(t, err)
	return q
}

// others lets goroutines that can run do so.
func others() {
	for range 1000 {
		runtime.Gosched()
	}
}

func TestNoCommandOfADestroyedQPNamesTheNext(t *testing.T) {
	o := newObjects(t)
	gone := o.newQP(t)
	require.NoError(t, gone.Destroy())
	next := o.newQP(t)
	require.Equal(t, gone.handle, next.handle)

	_, err := gone.Query()
	require.ErrorIs(t, err, verbs.ErrClosed)
	gone.failedByKernel() // as of a completion that was polled before the QP was destroyed
	gone.flush()          // as of a receive that was posted before
	gone.Entered(verbs.QPStateErr)
	require.ErrorIs(t, gone.Modify(&verbs.QPAttr{State: verbs.QPStateErr}, verbs.QPAttrState), verbs.ErrClosed)
	require.Empty(t, o.kernel.commandsOf(next.handle))
}

func TestDestroyWaitsForTheCommandsAboutTheQP(t *testing.T) {
	for name, c := range map[string]struct {
		cmd abi.Command
		run func(*qp) error
	}{
		"Query":  {abi.CmdQueryQP, func(q *qp) error { _, err := q.Query(); return err }},
		"Modify": {abi.CmdModifyQP, func(q *qp) error { return q.Modify(&verbs.QPAttr{State: verbs.QPStateInit}, verbs.QPAttrState) }},
		"flush":  {abi.CmdModifyQP, func(q *qp) error { q.failedByKernel(); return nil }},
	} {
		t.Run(name, func(t *testing.T) {
			o := newObjects(t)
			q := o.newQP(t)
			begun, end := make(chan struct{}), make(chan struct{})
			o.kernel.begins = func(cmd abi.Command) {
				if cmd == c.cmd {
					close(begun)
					<-end // ends with the test's close
				}
			}
			ran, destroyed := make(chan error, 1), make(chan error, 1)
			go func() { ran <- c.run(q) }()
			<-begun // ends with the command
			go func() { destroyed <- q.Destroy() }()
			others()
			close(end)
			require.NoError(t, <-ran)       // ends with the command
			require.NoError(t, <-destroyed) // and then with DESTROY_QP
			require.Zero(t, o.kernel.refused, "DESTROY_QP is given when the QP is idle")
		})
	}
}

func TestNoDoorbellIsRungForAQPThatIsBeingDestroyed(t *testing.T) {
	d, commands := recordingDevice(t)
	o := newObjects(t)
	o.pd.dev.file.FD = d.file.FD
	q := o.newQP(t)
	q.state.Store(uint32(verbs.QPStateRTS))
	destroyed, end := make(chan struct{}), make(chan struct{})
	o.kernel.ends = func(cmd abi.Command) {
		if cmd == abi.CmdDestroyQP {
			close(destroyed)
			<-end // ends with the test's close
		}
	}
	ended, posted := make(chan error, 1), make(chan error, 1)
	go func() { ended <- q.Destroy() }()
	<-destroyed // ends with the command
	go func() {
		_, err := q.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend}})
		posted <- err
	}()
	others()
	close(end)
	require.NoError(t, <-ended)                   // ends with the command
	require.ErrorIs(t, <-posted, verbs.ErrClosed) // ends with Destroy
	require.Empty(t, commands())
}

func TestANumberIsNotUsedAgainBeforeItsCompletionsAreDropped(t *testing.T) {
	o := newObjects(t)
	gone := o.newQP(t)
	siwCompletes(o.mem, 0, 1, gone.num, 0)
	destroyed, end := make(chan struct{}), make(chan struct{})
	o.kernel.ends = func(cmd abi.Command) {
		if cmd == abi.CmdDestroyQP {
			close(destroyed)
			<-end // ends with the test's close
		}
	}
	ended := make(chan error, 1)
	go func() { ended <- gone.Destroy() }()
	<-destroyed // ends with the command
	made := make(chan *qp, 1)
	go func() {
		next, err := o.createQP()
		if err != nil {
			t.Error(err)
		}
		made <- next
	}()
	others()
	select { // never waits
	case <-made:
		t.Fatal("a completion of the QP before lies in the CQ")
	default:
	}
	close(end)
	require.NoError(t, <-ended) // ends with the command
	next := <-made              // ends with Destroy
	require.Equal(t, gone.num, next.num)
	n, err := o.cq.Poll(make([]verbs.WC, 4))
	require.NoError(t, err)
	require.Zero(t, n)
	siwCompletes(o.mem, 1, 2, next.num, 0)
	var wcs [4]verbs.WC
	n, err = o.cq.Poll(wcs[:])
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.EqualValues(t, 2, wcs[0].ID)
}

func TestWhatAQPIsMadeOfStaysWhileItIsMade(t *testing.T) {
	o := newObjects(t)
	begun, end := make(chan struct{}), make(chan struct{})
	o.kernel.ends = func(cmd abi.Command) { // the kernel is through with the command
		if cmd == abi.CmdCreateQP {
			close(begun)
			<-end // ends with the test's close
		}
	}
	made := make(chan *qp, 1)
	go func() {
		q, err := o.createQP()
		if err != nil {
			t.Error(err)
		}
		made <- q
	}()
	<-begun // ends with the command
	require.ErrorIs(t, o.cq.Destroy(), verbs.ErrBusy)
	require.ErrorIs(t, o.pd.Dealloc(), verbs.ErrBusy)
	close(end)
	q := <-made // ends with the command
	require.ErrorIs(t, o.cq.Destroy(), verbs.ErrBusy)
	require.NoError(t, q.Destroy())
	require.NoError(t, o.cq.Destroy())
	require.NoError(t, o.pd.Dealloc())
	_, err := o.createQP()
	require.ErrorIs(t, err, verbs.ErrClosed)
	_, err = o.pd.RegisterMR(make([]byte, 8), verbs.AccessLocalWrite)
	require.ErrorIs(t, err, verbs.ErrClosed)
}

func TestZeroBasedMemoryAgreesWithTheKernelsPage(t *testing.T) {
	defer func(size int) { pages.Size = size }(pages.Size)
	pages.Size = 64 << 10 // as kernels for arm64 may have
	o := newObjects(t)
	mem := make([]byte, 192<<10)
	// not where pages of 4 KiB and of 64 KiB begin both
	at := 12<<10 + int(-abi.AddressOf(mem)&(64<<10-1))
	mr, err := o.pd.RegisterMR(mem[at:at+8], verbs.AccessLocalWrite|verbs.AccessZeroBased)
	require.NoError(t, err)
	require.EqualValues(t, 12<<10, mr.Addr())
}
