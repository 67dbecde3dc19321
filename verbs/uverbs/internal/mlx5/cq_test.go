//go:build amd64 || arm64

package mlx5

import (
	"bytes"
	"errors"
	"math/bits"
	"strconv"
	"testing"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
	"github.com/stretchr/testify/require"
)

// A kernel makes CQs of powers of two up to what it advertises and one
// (mlx5_ib_create_cq).
func TestTheLargestCQThatIsAdvertisedCanBeMade(t *testing.T) {
	for _, kernel := range []int{0, 63, 127, 1<<10 - 1, 1 << 10, 1<<22 - 1, 1<<24 - 1} {
		t.Run(strconv.Itoa(kernel), func(t *testing.T) {
			ctx, _ := newContext(t)
			attr := verbs.DeviceAttr{MaxCQE: kernel}
			ctx.Describe(&attr)
			if kernel <= minReserved {
				require.Zero(t, attr.MaxCQE)
				return
			}
			require.Positive(t, attr.MaxCQE)
			made, err := ctx.CreateCQ(attr.MaxCQE, func(entries int, _ driver.Udata) error {
				require.LessOrEqual(t, entries, kernel)
				require.LessOrEqual(t, roundUp(entries+1), kernel+1)
				return nil
			})
			require.NoError(t, err)
			require.Equal(t, attr.MaxCQE, made.(*cq).Capacity())
			_, err = ctx.CreateCQ(maxEntries-minReserved, func(int, driver.Udata) error { t.Fatal("larger than any"); return nil })
			require.ErrorIs(t, err, verbs.ErrInvalid)
		})
	}
}

// The limit that docs/transports.md tells of.
func TestALargeCQHasReservedEntriesForManyQPs(t *testing.T) {
	ctx, _ := newContext(t)
	ctx.Describe(&verbs.DeviceAttr{MaxCQE: 1<<22 - 1})
	for cqe, least := range map[int]int{1: minReserved, 100: minReserved, 1000: 250, 1 << 12: 1 << 10, 4000: 1000} {
		require.GreaterOrEqual(t, newCQ(t, ctx, cqe).reserved, least, "%d entries", cqe)
	}
}

// Resized, a CQ has its completions in their order, whatever their places in the two rings, and no
// more reserved entries than there are.
func TestCompletionsMoveWithTheirCQ(t *testing.T) {
	for _, sizes := range [][]int{{100, 1000}, {1000, 100}, {100, 1000, 200, 100}, {100, 101}} {
		for _, taken := range []uint32{0, 1, 60, 1000} { // before
			ctx, mem := newContext(t)
			c := newCQ(t, ctx, sizes[0])
			q := newQP(t, ctx, driver.QPAttr{Type: verbs.QPTypeRC, Cap: verbs.QPCap{MaxSendWR: 4}, SignalAll: true})
			require.NoError(t, postOne(q, 0))
			const waiting = 50
			written, next := uint32(0), uint32(0)
			write := func() {
				device(c, written, cqeRequest, 0, func(cqe []byte) { be.PutUint32(cqe[cqeBytes:], next) })
				written++
				next++
			}
			expect := uint32(0)
			take := func(n uint32) {
				for range n {
					var wcs [1]verbs.WC
					q.send.done.Store(0) // the one request completes again
					k, err := c.Poll(wcs[:], one{q})
					require.NoError(t, err)
					require.Equal(t, 1, k)
					require.Equal(t, expect, wcs[0].ByteLen)
					expect++
				}
			}
			for range taken {
				write()
				take(1)
			}
			for range waiting {
				write()
			}
			for _, size := range sizes[1:] {
				q.send.done.Store(0)
				require.ErrorIs(t, c.Resize(waiting-1, nil), verbs.ErrInvalid, "%d wait", waiting)
				require.NoError(t, c.Resize(size, func(entries int, u driver.Udata) error {
					require.GreaterOrEqual(t, entries, size+minReserved)
					in := abi.ViewAt[resizeCQIn](u.In, 0)
					require.EqualValues(t, cqeSize, in.cqeSize)
					require.NotZero(t, in.buffer)
					device(c, written, cqeResize, 0, nil)
					written++
					return nil
				}))
				require.Equal(t, size, c.Capacity())
				require.Equal(t, int(c.mask), c.reserved+size)
				require.Equal(t, bits.ReverseBytes32(c.next), c.record[0])
				take(10)
				for range 10 {
					write()
				}
			}
			take(waiting)
			var wcs [1]verbs.WC
			n, err := c.Poll(wcs[:], one{q})
			require.NoError(t, err)
			require.Zero(t, n)
			c.Unmap()
			q.Unmap()
			ctx.Close()
			require.Zero(t, mem.used)
		}
	}
}

func postOne(q *qp, id uint64) error {
	_, _, err := q.PostSend([]verbs.SendWR{{ID: id, Opcode: verbs.OpSend}})
	return err
}

// What a device has written that has not resized the queue does not end the process, nor the lock.
func TestAQueueThatWasNotResizedIsBroken(t *testing.T) {
	ctx, _ := newContext(t)
	c := newCQ(t, ctx, 100)
	require.ErrorIs(t, c.Resize(1000, func(int, driver.Udata) error { return nil }), errQueue)
	c = newCQ(t, ctx, 100)
	for i := range uint32(50) {
		device(c, i, cqeRequest, 0, nil)
	}
	require.ErrorIs(t, c.Resize(1000, func(int, driver.Udata) error { return nil }), errQueue)
	refused := errors.New("refused")
	require.ErrorIs(t, c.Resize(2000, func(int, driver.Udata) error { return refused }), refused)
	require.Zero(t, c.waiting(), "the new memory is empty")
}

func TestArmingForASolicitedCompletionDoesNotWeaken(t *testing.T) {
	ctx, _ := newContext(t)
	c := newCQ(t, ctx, 8)
	record := func() uint32 { return bits.ReverseBytes32(c.record[1]) }
	c.Arm(true)
	require.EqualValues(t, 1<<24, record())
	c.Arm(false)
	require.EqualValues(t, 0, record())
	c.Arm(true)
	require.EqualValues(t, 0, record(), "it is armed for any")
	c.Notified()
	c.Arm(true)
	require.EqualValues(t, 1<<28|1<<24, record())
	require.Equal(t, bits.ReverseBytes64((1<<28|1<<24)<<32|0xabc), *abi.ViewAt[uint64](ctx.uars[0], cqDoorbell))
}

// Close of a device lets go of its objects in any order, and whoever polls the CQ
// may find a receive of an SRQ whose memory is gone.
func TestAReceiveOfAnSRQThatIsGoneCompletes(t *testing.T) {
	ctx, _ := newContext(t)
	c := newCQ(t, ctx, 8)
	s := newSRQ(t, ctx, verbs.SRQAttr{MaxWR: 3, MaxSGE: 1})
	q := newQP(t, ctx, driver.QPAttr{Type: verbs.QPTypeRC, Cap: verbs.QPCap{MaxSendWR: 1}, SRQ: s})
	n, err := s.PostRecv([]verbs.RecvWR{{ID: 5}, {ID: 6}})
	require.NoError(t, err)
	require.Equal(t, 2, n)
	freed := s.mem
	s.Unmap()
	before := bytes.Clone(freed)
	device(c, 0, cqeRecv, 1, nil)
	device(c, 1, cqeRecv, 0, nil)
	var wcs [3]verbs.WC
	n, err = c.Poll(wcs[:], one{q})
	require.NoError(t, err)
	require.Equal(t, []verbs.WC{{ID: 6, QPN: qpn, Opcode: verbs.WCRecv}, {ID: 5, QPN: qpn, Opcode: verbs.WCRecv}}, wcs[:n])
	require.Equal(t, before, freed, "memory that was freed")
}

// A card that finds no page behind a receive of an SRQ completes that with an error, and waits for
// the peer to send again. libmlx5 posts the receive once more (cq.c, is_odp_pfault_err).
func TestAReceiveOfAnSRQWhosePageWasMissingIsPostedAgain(t *testing.T) {
	ctx, _ := newContext(t)
	c := newCQ(t, ctx, 8)
	s := newSRQ(t, ctx, verbs.SRQAttr{MaxWR: 3, MaxSGE: 1})
	q := newQP(t, ctx, driver.QPAttr{Type: verbs.QPTypeRC, Cap: verbs.QPCap{MaxSendWR: 1}, SRQ: s})
	_, err := s.PostRecv([]verbs.RecvWR{{ID: 5, SGL: sgl(100)}, {ID: 6}, {ID: 7}})
	require.NoError(t, err)
	device(c, 0, cqeResponseError, 0, func(cqe []byte) { cqe[cqeSyndrome], cqe[cqeVendor] = 0x22, pageFault })
	var wcs [3]verbs.WC
	n, err := c.Poll(wcs[:], one{q})
	require.NoError(t, err)
	require.Zero(t, n, "nothing has come, and nothing has failed")
	require.Equal(t, bits.ReverseBytes32(4), *s.record)
	require.Equal(t, s.slot(0)[nextSegment:], s.slot(3)[nextSegment:])
	_, err = s.PostRecv([]verbs.RecvWR{{ID: 8}})
	require.ErrorIs(t, err, verbs.ErrQueueFull, "three are posted")
	for i, index := range []uint16{1, 2, 3} {
		device(c, uint32(1+i), cqeRecv, index, nil)
	}
	n, err = c.Poll(wcs[:], one{q})
	require.NoError(t, err)
	require.Equal(t, 3, n)
	require.Equal(t, []uint64{6, 7, 5}, []uint64{wcs[0].ID, wcs[1].ID, wcs[2].ID})
	device(c, 4, cqeResponseError, 0, func(cqe []byte) { cqe[cqeSyndrome] = 0x22 })
	n, err = s.PostRecv([]verbs.RecvWR{{ID: 9}})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	n, err = c.Poll(wcs[:], one{q})
	require.NoError(t, err)
	require.Equal(t, []verbs.WC{{ID: 9, QPN: qpn, Opcode: verbs.WCRecv, Status: verbs.WCRemAbortErr}}, wcs[:n])
}

// FuzzCompletions has anything in a CQ, and in completions of a QP with a receive
// queue and of one with an SRQ: polls end, nothing panics, and no request completes
// twice.
func FuzzCompletions(f *testing.F) {
	f.Add([]byte{}, uint8(3), false)
	f.Add([]byte{0x12, 0x34, 0x56, 0, 0, 0, 0x20, 0, 0, 1, 0, 0x20}, uint8(1), true)
	f.Add([]byte{0x12, 0x34, 0x56, 0, 5, 0, 0xd0, 0, 0, 1, 0, 0xe0}, uint8(200), false)
	f.Fuzz(func(t *testing.T, cqes []byte, posts uint8, shared bool) {
		ctx, _ := newContext(t)
		c := newCQ(t, ctx, 8)
		attr := driver.QPAttr{Type: verbs.QPTypeRC, Cap: size, SendCQ: c}
		var s *srq
		if shared {
			s = newSRQ(t, ctx, verbs.SRQAttr{MaxWR: 8, MaxSGE: 2})
			attr.SRQ, attr.Cap.MaxRecvWR = s, 0
		}
		q := newQP(t, ctx, attr)
		posted, completed := 0, 0
		for i := range posts {
			n, _, _ := q.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend, Flags: verbs.SendFlags(i)}})
			posted += n
			if shared {
				n, _ = s.PostRecv([]verbs.RecvWR{{SGL: sgl(1)}})
			} else {
				n, _ = q.PostRecv([]verbs.RecvWR{{SGL: sgl(1)}})
			}
			posted += n
		}
		const each = 6 // QP, syndrome or so, counter, opcode
		for i := uint32(0); len(cqes) >= each; i++ {
			b := cqes[:each]
			cqes = cqes[each:]
			device(c, i, b[5]>>4, uint16(b[3])<<8|uint16(b[4]), func(cqe []byte) {
				copy(cqe[cqeOpQPN+1:], b[:3])
				cqe[cqeSyndrome] = b[4]
			})
		}
		wcs := make([]verbs.WC, 3)
		for range 2 * int(c.mask) {
			n, err := c.Poll(wcs, one{q})
			require.LessOrEqual(t, n, len(wcs))
			if err != nil {
				require.ErrorIs(t, err, errQueue)
				break
			}
			completed += n
		}
		require.LessOrEqual(t, completed, posted)
	})
}

// A CQ may be begun before the device is closed, and be refused by the kernel after that.
func TestACQThatCloseOvertakesIsRefused(t *testing.T) {
	ctx, mem := newContext(t)
	ctx.Close()
	_, err := ctx.CreateCQ(16, func(int, driver.Udata) error { return verbs.ErrClosed })
	require.ErrorIs(t, err, verbs.ErrClosed)
	require.Zero(t, mem.used)
}
