//go:build linux

package soft_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft"
	"github.com/stretchr/testify/require"
)

// shrinker is what callers assert qp.Driver() to.
type shrinker interface{ ShrinkRing() error }

// numbered sends WRITEs with immediates that count, and checks that they come in
// order.
type numbered struct {
	t          *testing.T
	a, b       *end
	sent, seen uint32
}

func newNumbered(t *testing.T, receives int) *numbered {
	s := usual
	s.cap.MaxRecvWR = receives
	a, b := newPair(t, s)
	n := &numbered{t: t, a: a, b: b}
	wrs := make([]verbs.RecvWR, receives)
	_, err := b.qp.PostRecv(wrs)
	require.NoError(t, err)
	// goes when they are paired
	_, err = a.qp.PostSend([]verbs.SendWR{{Opcode: verbs.OpWriteWithImm}})
	require.NoError(t, err)
	n.sent++
	require.Eventually(t, func() bool { n.receive(1); return n.seen == 1 }, 10*time.Second, time.Millisecond)
	return n
}

func (n *numbered) send(count int) {
	for range count {
		if _, err := n.a.qp.PostSend([]verbs.SendWR{{Opcode: verbs.OpWriteWithImm, Imm: n.sent}}); err != nil {
			require.NoError(n.t, err)
		}
		n.sent++
	}
	require.Zero(n.t, soft.Queued(n.a.qp), "there were receives")
}

// receive takes all that has come, and posts as many receives.
func (n *numbered) receive(batch int) {
	wcs, wrs := make([]verbs.WC, batch), make([]verbs.RecvWR, batch)
	for {
		got, err := n.b.recv.Poll(wcs)
		require.NoError(n.t, err)
		for _, wc := range wcs[:got] {
			if wc.Status != verbs.WCSuccess || wc.Imm != n.seen {
				require.Equal(n.t, n.seen, wc.Imm, "status %v", wc.Status)
			}
			n.seen++
		}
		_, err = n.b.qp.PostRecv(wrs[:got])
		require.NoError(n.t, err)
		if got < batch {
			return
		}
	}
}

func (n *numbered) shrink() {
	require.NoError(n.t, n.b.recv.Arm(false)) // it has nothing to do for now
	require.NoError(n.t, n.a.qp.Driver().(shrinker).ShrinkRing())
	n.b.recv.Disarm()
}

func TestTheRingHasMemoryAsItIsUsed(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		const few, all = 8 << 10, 256 << 10
		n := newNumbered(t, 2048)
		require.LessOrEqual(t, soft.RingBytes(t, n.b.qp), few)
		for range 10000 { // one at a time
			n.send(1)
			n.receive(16)
		}
		require.LessOrEqual(t, soft.RingBytes(t, n.b.qp), few)
		for range 3 {
			n.send(2048) // as many as it has receives
			require.Equal(t, n.sent, n.seen+2048)
			n.receive(256)
			require.Equal(t, n.sent, n.seen, "all are in the peer's memory when PostSend returns")
			require.Greater(t, soft.RingBytes(t, n.b.qp), all/3)
			for range 2 { // the first makes it go on at the start
				n.shrink()
				n.send(1)
				n.receive(16)
			}
			n.shrink()
			require.LessOrEqual(t, soft.RingBytes(t, n.b.qp), few)
		}
	})
}

// Whatever the order of bursts, polls and shrinking: what was sent comes, once and
// in order, and a peer with a receive never finds the ring full.
func TestTheRingGrowsAndShrinksInAnyOrder(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		for _, receives := range []int{32, 64, 100, 512, 2032} {
			n := newNumbered(t, receives)
			rnd := rand.New(rand.NewPCG(1, uint64(receives)))
			for range 1000 {
				switch rnd.IntN(8) {
				case 0:
					n.shrink()
				case 1, 2:
					n.receive(1 + rnd.IntN(300))
				case 3:
					n.send(receives - int(n.sent-n.seen)) // the last receive too
				default:
					n.send(rnd.IntN(1 + min(receives-int(n.sent-n.seen), 1<<rnd.IntN(12))))
				}
			}
			n.receive(64)
			require.Equal(t, n.sent, n.seen)
		}
	})
}
