//go:build amd64 || arm64

package mlx5

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"testing"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
	"github.com/stretchr/testify/require"
)

func TestRequestsGoRoundTheEndOfTheQueue(t *testing.T) {
	ctx, _ := newContext(t)
	c := newCQ(t, ctx, 8)
	q := newQP(t, ctx, driver.QPAttr{Type: verbs.QPTypeRC, Cap: verbs.QPCap{MaxSendWR: 5, MaxInline: 200}, SignalAll: true})
	for i := range uint64(100) {
		data := make([]byte, 50+i)
		for j := range data {
			data[j] = byte(i + 1)
		}
		first := q.send.posted.Load()
		n, _, err := q.PostSend([]verbs.SendWR{{ID: i, Opcode: verbs.OpSend, Flags: verbs.SendInline, Inline: [][]byte{data}}})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		ring := append(append([]byte{}, q.send.mem[int(first&q.send.mask)*blockSize:]...), q.send.mem...)
		require.Equal(t, data, ring[segmentSize+4:][:len(data)])
		device(c, uint32(i), cqeRequest, uint16(first), nil)
		var wcs [2]verbs.WC
		n, err = c.Poll(wcs[:], one{q})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, verbs.WC{ID: i, QPN: qpn}, wcs[0])
		require.EqualValues(t, i+1, bits.ReverseBytes32(c.record[0]))
	}
}

// Of free-running counters the device takes 16 bits, or of CQs 24. What is above them in a WQE or in a record is
// something else, or reserved.
func TestCountersGoRound(t *testing.T) {
	ctx, _ := newContext(t)
	c := newCQ(t, ctx, 8)
	attr := driver.QPAttr{Type: verbs.QPTypeRC, Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4}, SignalAll: true}
	q := newQP(t, ctx, attr)
	s := newSRQ(t, ctx, verbs.SRQAttr{MaxWR: 8})
	const round = 1 << 16
	for _, word := range []interface{ Store(uint32) }{&q.send.posted, &q.send.done, &q.recv.posted, &q.recv.done} {
		word.Store(round - 1)
	}
	c.next, s.posted = 1<<24-2, round-1
	for i := range uint32(3) {
		n, _, err := q.PostSend([]verbs.SendWR{{ID: uint64(i), Opcode: verbs.OpSend}})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		at := round - 1 + i
		require.Equal(t, at%round<<8|opSend, be.Uint32(q.send.block(at)[:]), "the index, and no modifier above it")
		for _, queue := range []interface {
			PostRecv([]verbs.RecvWR) (int, error)
		}{q, s} {
			_, err = queue.PostRecv([]verbs.RecvWR{{ID: uint64(10 + i)}})
			require.NoError(t, err)
		}
		for _, record := range []uint32{q.record[0], q.record[1], *s.record} {
			require.Equal(t, (at+1)%round, bits.ReverseBytes32(record))
		}
		device(c, c.next, cqeRequest, uint16(at), nil)
		device(c, c.next+1, cqeRecv, uint16(at), nil)
		var wcs [4]verbs.WC
		n, err = c.Poll(wcs[:], one{q})
		require.NoError(t, err)
		require.Equal(t, []verbs.WC{{ID: uint64(i), QPN: qpn}, {ID: uint64(10 + i), QPN: qpn, Opcode: verbs.WCRecv}}, wcs[:n])
		require.Equal(t, 2*i, bits.ReverseBytes32(c.record[0]))
		c.Arm(false)
		require.Equal(t, i<<28|2*i, bits.ReverseBytes32(c.record[1]), "how many events were read, and CQEs taken")
		c.Notified()
	}
	q.Reset()
	require.Equal(t, [2]uint32{}, *q.record)
}

func TestACompletionFreesTheRequestsBeforeIt(t *testing.T) {
	ctx, _ := newContext(t)
	c := newCQ(t, ctx, 8)
	q := newQP(t, ctx, driver.QPAttr{Type: verbs.QPTypeRC, Cap: verbs.QPCap{MaxSendWR: 8}})
	wrs := make([]verbs.SendWR, 9)
	for i := range wrs {
		wrs[i] = verbs.SendWR{ID: uint64(i), Opcode: verbs.OpSend}
	}
	wrs[5].Flags = verbs.SendSignaled
	n, _, err := q.PostSend(wrs)
	require.ErrorIs(t, err, verbs.ErrQueueFull)
	require.Equal(t, 8, n)
	device(c, 0, cqeRequest, 5, nil)
	var wcs [4]verbs.WC
	n, err = c.Poll(wcs[:], one{q})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.EqualValues(t, 5, wcs[0].ID)
	n, _, err = q.PostSend(wrs)
	require.ErrorIs(t, err, verbs.ErrQueueFull)
	require.Equal(t, 6, n)
}

// When a QP fails all its requests complete, and its CQ may have room for as
// many as it was made for.
func TestAQueueTakesNoMoreRequestsThanItWasMadeForHoweverSmall(t *testing.T) {
	ctx, _ := newContext(t)
	q := newQP(t, ctx, driver.QPAttr{Type: verbs.QPTypeRC, Cap: verbs.QPCap{MaxSendWR: 8, MaxInline: 200}, SendCQ: newCQ(t, ctx, 8)})
	wrs := make([]verbs.SendWR, 9)
	for i := range wrs {
		wrs[i].Opcode = verbs.OpSend
	}
	n, _, err := q.PostSend(wrs)
	require.ErrorIs(t, err, verbs.ErrQueueFull)
	require.Equal(t, 8, n)
}

func TestAMarkedRequestFreesTheQueueAndIsNotSeen(t *testing.T) {
	ctx, _ := newContext(t)
	c := newCQ(t, ctx, 8)
	q := newQP(t, ctx, driver.QPAttr{Type: verbs.QPTypeRC, Cap: verbs.QPCap{MaxSendWR: 8}, SendCQ: c})
	n, _, err := q.PostSend(make([]verbs.SendWR, 0))
	require.NoError(t, err)
	require.Zero(t, n)
	for i := range uint64(100) {
		n, _, err := q.PostSend([]verbs.SendWR{{ID: i, Opcode: verbs.OpSend}})
		if err != nil {
			require.ErrorIs(t, err, verbs.ErrQueueFull)
		}
		if n == 1 {
			continue
		}
		marked := -1
		for at := q.send.done.Load(); at != q.send.posted.Load(); at++ {
			if q.send.requests[at&q.send.mask].marked() {
				require.Equal(t, -1, marked, "one reserved entry, one marked request")
				marked = int(at)
			}
		}
		require.GreaterOrEqual(t, marked, 0)
		require.EqualValues(t, flagSignaled, q.send.mem[int(uint32(marked)&q.send.mask)*blockSize+ctrlFlags])
		device(c, c.next, cqeRequest, uint16(marked), nil)
		var wcs [4]verbs.WC
		n, err = c.Poll(wcs[:], one{q})
		require.NoError(t, err)
		require.Zero(t, n, "nobody has asked for it")
		require.EqualValues(t, marked+1, q.send.done.Load())
	}
	require.EqualValues(t, 1, c.lent)
	q.Unmap()
	require.Zero(t, c.lent)
}

// A program that asks for no completion posts for ever, whatever the sizes of its
// queue and of its requests are: where the queue is full, a marked request is on
// its way.
func TestRequestsWithoutCompletionsNeverFillTheQueueForEver(t *testing.T) {
	for _, wrs := range []int{1, 2, 3, 5, 8} {
		for _, inline := range []int{0, 64, 128, 192, 256} {
			for _, length := range []int{0, 20, 84, 148, 256, -1} {
				if length > inline {
					continue
				}
				t.Run(fmt.Sprintf("%d of up to %d bytes, of %d", wrs, inline, length), func(t *testing.T) {
					ctx, _ := newContext(t)
					c := newCQ(t, ctx, 8)
					q := newQP(t, ctx, driver.QPAttr{Type: verbs.QPTypeRC, Cap: verbs.QPCap{MaxSendWR: wrs, MaxInline: inline}, SendCQ: c})
					random := rand.New(rand.NewPCG(1, uint64(wrs<<16|inline)))
					for range 300 {
						n := length
						if n < 0 {
							n = random.IntN(inline + 1)
						}
						wr := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendInline, Inline: [][]byte{make([]byte, n)}}
						posted, _, err := q.PostSend([]verbs.SendWR{wr})
						if posted == 1 {
							continue
						}
						require.ErrorIs(t, err, verbs.ErrQueueFull)
						completeMarked(t, c, q)
						posted, _, err = q.PostSend([]verbs.SendWR{wr})
						require.NoError(t, err, "everything that was marked is done")
						require.Equal(t, 1, posted)
					}
				})
			}
		}
	}
}

func TestAQPWithoutAReservedEntryIsFreedBySignaledRequests(t *testing.T) {
	ctx, _ := newContext(t)
	c := newCQ(t, ctx, 8)
	attr := driver.QPAttr{Type: verbs.QPTypeRC, Cap: verbs.QPCap{MaxSendWR: 4}, SendCQ: c}
	for range c.reserved {
		require.True(t, newQP(t, ctx, attr).send.marks)
	}
	q := newQP(t, ctx, attr)
	wrs := make([]verbs.SendWR, 5)
	for i := range wrs {
		wrs[i] = verbs.SendWR{ID: uint64(i), Opcode: verbs.OpSend}
	}
	wrs[3].Flags = verbs.SendSignaled
	n, _, err := q.PostSend(wrs)
	require.ErrorIs(t, err, verbs.ErrQueueFull)
	require.Equal(t, 4, n)
	completeMarked(t, c, q)
	require.EqualValues(t, 4, q.send.posted.Load()-q.send.done.Load(), "there is no entry for a marked request")
	device(c, 0, cqeRequest, 3, nil)
	var wcs [2]verbs.WC
	n, err = c.Poll(wcs[:], one{q})
	require.NoError(t, err)
	require.Equal(t, []verbs.WC{{ID: 3, QPN: qpn}}, wcs[:n])
	n, _, err = q.PostSend(wrs[:4])
	require.NoError(t, err)
	require.Equal(t, 4, n)
}

// byNumber are the QPs of a CQ. It calls found before it finds one.
type byNumber struct {
	qps   map[uint32]*qp
	found func()
}

func (b byNumber) Find(num uint32) driver.QP {
	b.found()
	if q, ok := b.qps[num]; ok {
		return q
	}
	return nil
}

// As soon as a marked request is seen to be done another one may be marked, for which
// the device needs the entry.
func TestTheEntryOfAMarkedRequestIsGivenBackAtOnce(t *testing.T) {
	ctx, _ := newContext(t)
	c := newCQ(t, ctx, 8)
	attr := driver.QPAttr{Type: verbs.QPTypeRC, Cap: verbs.QPCap{MaxSendWR: 2}, SendCQ: c}
	marking, signaled := newQP(t, ctx, attr), newQP(t, ctx, attr)
	signaled.number++
	require.NoError(t, postOne(marking, 0))
	_, _, err := signaled.PostSend([]verbs.SendWR{{ID: 1, Opcode: verbs.OpSend, Flags: verbs.SendSignaled}})
	require.NoError(t, err)
	device(c, 0, cqeRequest, 0, nil)
	device(c, 1, cqeRequest, 0, func(cqe []byte) { be.PutUint32(cqe[cqeOpQPN:], signaled.number) })
	var taken []uint32
	var wcs [2]verbs.WC
	n, err := c.Poll(wcs[:], byNumber{map[uint32]*qp{qpn: marking, signaled.number: signaled},
		func() { taken = append(taken, bits.ReverseBytes32(c.record[0])) }})
	require.NoError(t, err)
	require.Equal(t, []verbs.WC{{ID: 1, QPN: signaled.number}}, wcs[:n])
	require.Equal(t, []uint32{0, 1}, taken)
}

// completeMarked completes the marked request, of which there is at most one, and
// takes the completion.
func completeMarked(t *testing.T, c *cq, q *qp) {
	t.Helper()
	marked := 0
	for at := q.send.done.Load(); at != q.send.posted.Load(); at += q.send.requests[at&q.send.mask].blocks() {
		if q.send.requests[at&q.send.mask].marked() {
			marked++
			device(c, c.next, cqeRequest, uint16(at), nil)
		}
	}
	require.LessOrEqual(t, marked, 1, "there is one reserved entry")
	var wcs [2]verbs.WC
	n, err := c.Poll(wcs[:], one{q})
	require.NoError(t, err)
	require.Zero(t, n, "nobody has asked for it")
}
