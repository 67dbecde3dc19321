//go:build amd64 || arm64

package mlx5

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
)

// contextOfVersion is one whose completions are of a version.
func contextOfVersion(t testing.TB, version uint8) *context {
	t.Helper()
	d, err := Driver{}.Open(new(hostMemory), func(u driver.Udata) error {
		err := kernelThatSays(512, 16)(u)
		abi.ViewAt[contextOut](u.Out, 0).cqeVersion = version
		return err
	})
	require.NoError(t, err)
	return d.(*context)
}

// newXRCSRQ makes an SRQ with a number, and returns the index that the kernel was told too.
func newXRCSRQ(t testing.TB, c *context, number uint32) (s *srq, index uint32) {
	t.Helper()
	made, err := c.CreateXRCSRQ(verbs.SRQAttr{MaxWR: 3, MaxSGE: 1}, func(u driver.Udata) (uint32, error) {
		index = abi.ViewAt[createSRQIn](u.In, 0).index
		return number, nil
	})
	require.NoError(t, err)
	return made.(*srq), index
}

// deviceOf writes the CQE of a receive by a QP that is not here.
func deviceOf(c *cq, i uint32, opcode byte, receive uint16, index uint32) {
	device(c, i, opcode, receive, func(cqe []byte) {
		be.PutUint32(cqe[cqeOpQPN:], 0x777)
		be.PutUint32(cqe[cqeIndex:], index)
	})
}

func TestReceivesOfAnXRCSRQAreFoundByWhatItsCompletionsSay(t *testing.T) {
	for version := range uint8(2) {
		t.Run(fmt.Sprintf("version %d", version), func(t *testing.T) {
			ctx := contextOfVersion(t, version)
			c := newCQ(t, ctx, 8)
			q := newQP(t, ctx, driver.QPAttr{Type: verbs.QPTypeRC, Cap: size})
			one := one{q}
			first, firstIndex := newXRCSRQ(t, ctx, 0x33)
			second, secondIndex := newXRCSRQ(t, ctx, 0x44)
			if version == 0 {
				require.EqualValues(t, defaultIndex, firstIndex, "the kernel wants it")
				firstIndex, secondIndex = 0x33, 0x44
			}
			require.NotEqual(t, firstIndex, secondIndex)
			for i, s := range []*srq{first, second} {
				n, err := s.PostRecv([]verbs.RecvWR{{ID: uint64(10 * i)}, {ID: uint64(10*i + 1)}})
				require.NoError(t, err)
				require.Equal(t, 2, n)
			}
			n, err := q.PostRecv([]verbs.RecvWR{{ID: 100}})
			require.NoError(t, err)
			require.Equal(t, 1, n)
			deviceOf(c, 0, cqeRecv, 1, secondIndex)
			deviceOf(c, 1, cqeWriteImm, 0, firstIndex)
			device(c, 2, cqeRecv, 0, nil) // the QP's own
			deviceOf(c, 3, cqeResponseError, 0, secondIndex)
			first.Unmap()
			deviceOf(c, 4, cqeRecv, 1, firstIndex)
			wcs := make([]verbs.WC, 8)
			n, err = c.Poll(wcs, one)
			require.NoError(t, err)
			require.Equal(t, []verbs.WC{
				{ID: 11, QPN: 0x777, SrcQPN: 0x44, Opcode: verbs.WCRecv, Flags: driver.OfXRC},
				{ID: 100, QPN: qpn, Opcode: verbs.WCRecv},
				{ID: 10, QPN: 0x777, SrcQPN: 0x44, Opcode: verbs.WCRecv, Flags: driver.OfXRC, Status: verbs.WCGeneralErr},
			}, wcs[:n], "the other SRQ was gone when they were polled")
			again, index := newXRCSRQ(t, ctx, 0x55)
			if version == 1 {
				require.NotEqual(t, firstIndex, index, "an index is not given out again at once")
			}
			again.Unmap()
			second.Unmap()
			require.Empty(t, *ctx.xrc.table.Load())
		})
	}
}

func TestAnXRCSRQThatIsNotMadeLeavesNothing(t *testing.T) {
	ctx, mem := newContext(t)
	used := mem.used
	refusal := errors.New("the kernel refuses")
	_, err := ctx.CreateXRCSRQ(verbs.SRQAttr{MaxWR: 4, MaxSGE: 1}, func(driver.Udata) (uint32, error) { return 0, refusal })
	require.ErrorIs(t, err, refusal)
	_, err = ctx.CreateXRCSRQ(verbs.SRQAttr{MaxWR: 4, MaxSGE: 1}, func(driver.Udata) (uint32, error) { return 1 << 24, nil })
	require.ErrorIs(t, err, verbs.ErrInvalid, "a number of 24 bits is not 0")
	require.Equal(t, used, mem.used)
	require.Nil(t, ctx.xrc.table.Load())
}

func TestReceivesOfAnXRCSRQAllocateNothing(t *testing.T) {
	ctx := contextOfVersion(t, 1)
	c := newCQ(t, ctx, 8)
	s, index := newXRCSRQ(t, ctx, 0x33)
	var table driver.QPs = one{newQP(t, ctx, driver.QPAttr{Type: verbs.QPTypeRC, Cap: size})}
	receives, wcs := []verbs.RecvWR{{ID: 1}}, make([]verbs.WC, 2)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		receive := s.next
		_, _ = s.PostRecv(receives)
		deviceOf(c, c.next, cqeRecv, receive, index)
		if n, _ := c.Poll(wcs, table); n != 1 {
			t.Fatal("a completion was lost")
		}
	}))
}
