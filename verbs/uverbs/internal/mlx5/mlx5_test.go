//go:build amd64 || arm64

package mlx5

import (
	"errors"
	"testing"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
	"github.com/stretchr/testify/require"
)

// hostMemory is memory for a driver without a device.
type hostMemory struct{ used int }

func (m *hostMemory) Map(_ uint64, size int, _ driver.Protection) ([]byte, error) {
	m.used++
	return make([]byte, size), nil
}

func (m *hostMemory) Alloc(size int) ([]byte, error) {
	m.used++
	return make([]byte, size), nil
}

func (m *hostMemory) Unmap([]byte) { m.used-- }

func (m *hostMemory) Free([]byte) { m.used-- }

func newContext(t testing.TB) (*context, *hostMemory) {
	t.Helper()
	return newContextOf(t, Driver{})
}

func newContextOf(t testing.TB, of Driver) (*context, *hostMemory) {
	t.Helper()
	mem := new(hostMemory)
	d, err := of.Open(mem, kernelThatSays(512, 16))
	require.NoError(t, err)
	return d.(*context), mem
}

// kernelThatSays answers Open.
func kernelThatSays(bfregSize, bfregs uint32) func(driver.Udata) error {
	return func(u driver.Udata) error {
		*abi.ViewAt[contextOut](u.Out, 0) = contextOut{
			bfRegSize: bfregSize, totBfregs: bfregs, maxSendWQE: 512, maxRecvWQE: 512, maxSendBlocks: 1 << 15, maxRecvWR: 1 << 15,
			logUARSize: 12, uarsPerPage: 1,
		}
		return nil
	}
}

const qpn = 0x123456

func newQPAt(t testing.TB, c *context, bfreg uint32, attr driver.QPAttr) *qp {
	t.Helper()
	q, err := c.CreateQP(&attr, func(u driver.Udata) (driver.CreatedQP, error) {
		abi.ViewAt[createQPOut](u.Out, 0).bfregIndex = bfreg
		return driver.CreatedQP{Num: qpn, Cap: attr.Cap}, nil
	})
	require.NoError(t, err)
	return q.(*qp)
}

func newQP(t testing.TB, c *context, attr driver.QPAttr) *qp {
	t.Helper()
	return newQPAt(t, c, 6, attr)
}

func newCQ(t testing.TB, c *context, cqe int) *cq {
	t.Helper()
	q, err := c.CreateCQ(cqe, func(entries int, u driver.Udata) error {
		require.GreaterOrEqual(t, entries, cqe+minReserved)
		abi.ViewAt[createCQOut](u.Out, 0).cqn = 0xabc
		return nil
	})
	require.NoError(t, err)
	return q.(*cq)
}

// newSRQ makes an SRQ of which the kernel tells nothing.
func newSRQ(t testing.TB, c *context, attr verbs.SRQAttr) *srq {
	t.Helper()
	s, err := c.CreateSRQ(attr, func(driver.Udata) (verbs.SRQAttr, error) { return verbs.SRQAttr{}, nil })
	require.NoError(t, err)
	return s.(*srq)
}

// one is a table of one QP.
type one struct{ *qp }

func (o one) Find(num uint32) driver.QP {
	if num != o.number {
		return nil
	}
	return o.qp
}

// device writes CQE i.
func device(c *cq, i uint32, opcode byte, index uint16, set func(cqe []byte)) {
	cqe := c.mem[int(i&c.mask)*cqeSize:][:cqeSize]
	clear(cqe)
	be.PutUint32(cqe[cqeOpQPN:], qpn)
	if set != nil {
		set(cqe)
	}
	be.PutUint16(cqe[cqeLast:], index)
	cqe[cqeSize-1] = opcode<<4 | byte(i/(c.mask+1)&1)
}

var size = verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: 64}

func sgl(lengths ...uint32) []verbs.SGE {
	list := make([]verbs.SGE, len(lengths))
	for i, n := range lengths {
		list[i] = verbs.SGE{Addr: uint64(i+1) << 32, Length: n, LKey: uint32(0x100*i + 7)}
	}
	return list
}

func TestNothingIsLeftOfWhatCannotBeMade(t *testing.T) {
	ctx, mem := newContext(t)
	pages := mem.used
	refusal := errors.New("the kernel refuses")
	_, err := ctx.CreateCQ(4, func(int, driver.Udata) error { return refusal })
	require.ErrorIs(t, err, refusal)
	_, err = ctx.CreateSRQ(verbs.SRQAttr{MaxWR: 4, MaxSGE: 1}, func(driver.Udata) (verbs.SRQAttr, error) { return verbs.SRQAttr{}, refusal })
	require.ErrorIs(t, err, refusal)
	_, err = ctx.CreateQP(&driver.QPAttr{Type: verbs.QPTypeRC, Cap: size}, func(driver.Udata) (driver.CreatedQP, error) { return driver.CreatedQP{}, refusal })
	require.ErrorIs(t, err, refusal)
	_, err = ctx.CreateQP(&driver.QPAttr{Type: verbs.QPTypeRC, Cap: size}, func(u driver.Udata) (driver.CreatedQP, error) {
		abi.ViewAt[createQPOut](u.Out, 0).bfregIndex = 1 << 20
		return driver.CreatedQP{}, nil
	})
	require.ErrorIs(t, err, verbs.ErrInvalid)
	require.Equal(t, pages, mem.used)
	ctx.Close()
	require.Zero(t, mem.used)
}

func TestPostPollAndArmAllocateNothing(t *testing.T) {
	ctx, _ := newContext(t)
	c := newCQ(t, ctx, 8)
	q := newQP(t, ctx, driver.QPAttr{Type: verbs.QPTypeRC, Cap: size})
	sends := []verbs.SendWR{{Opcode: verbs.OpSend, Flags: verbs.SendSignaled | verbs.SendInline, Inline: [][]byte{make([]byte, 60)}}}
	recvs := []verbs.RecvWR{{SGL: sgl(8)}}
	wcs := make([]verbs.WC, 4)
	var table driver.QPs = one{q}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		at, recv := q.send.posted.Load(), q.recv.posted.Load()
		_, _, _ = q.PostSend(sends)
		_, _ = q.PostRecv(recvs)
		device(c, c.next, cqeRequest, uint16(at), nil)
		device(c, c.next+1, cqeRecv, uint16(recv), nil)
		if n, _ := c.Poll(wcs, table); n != 2 {
			t.Fatal("completions were lost")
		}
		c.Arm(false)
	}))
}

// BenchmarkPostAndPoll is what a request costs beside the device: its WQE, record and
// doorbell, and its completion.
func BenchmarkPostAndPoll(b *testing.B) {
	b.Run("doorbell", func(b *testing.B) { benchmarkPostAndPoll(b, Driver{}) })
	b.Run("BlueFlame", func(b *testing.B) { benchmarkPostAndPoll(b, Driver{BlueFlame: true}) })
}

func benchmarkPostAndPoll(b *testing.B, of Driver) {
	ctx, _ := newContextOf(b, of)
	c := newCQ(b, ctx, 8)
	q := newQP(b, ctx, driver.QPAttr{Type: verbs.QPTypeRC, Cap: size})
	wrs := []verbs.SendWR{{Opcode: verbs.OpWrite, Flags: verbs.SendSignaled, SGL: sgl(4096), RemoteAddr: 1 << 40, RKey: 7}}
	wcs := make([]verbs.WC, 4)
	var table driver.QPs = one{q}
	b.ReportAllocs()
	for b.Loop() {
		at := q.send.posted.Load()
		if n, _, _ := q.PostSend(wrs); n != 1 {
			b.Fatal("the queue is full")
		}
		device(c, c.next, cqeRequest, uint16(at), nil)
		if n, _ := c.Poll(wcs, table); n != 1 {
			b.Fatal("no completion")
		}
	}
}

func TestADeviceHasAKeyOfNoMemoryIfTheKernelSaysSo(t *testing.T) {
	for _, mask := range []uint32{0, 1, hasDumpFillMKey} {
		d, err := Driver{}.Open(new(hostMemory), func(u driver.Udata) error {
			err := kernelThatSays(512, 16)(u)
			out := abi.ViewAt[contextOut](u.Out, 0)
			out.compMask, out.dumpFillMKey = mask, 0xd7
			return err
		})
		require.NoError(t, err)
		var attr verbs.DeviceAttr
		d.Describe(&attr)
		key, ok := d.(driver.NullContext).NullKey()
		require.Equal(t, mask == hasDumpFillMKey, ok)
		require.Equal(t, ok, attr.Caps.Has(verbs.CapNullMR))
		require.EqualValues(t, 0xd7, key)
	}
}
