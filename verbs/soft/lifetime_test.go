//go:build linux

package soft_test

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/race"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft"
	"github.com/stretchr/testify/require"
)

// bothWays runs a test within the process and between strangers.
func bothWays(t *testing.T, f func(t *testing.T)) {
	t.Run("in one process", func(t *testing.T) {
		soft.CheckLeaks(t)
		f(t)
	})
	t.Run("between strangers", func(t *testing.T) {
		soft.CheckLeaks(t)
		soft.PairAsStrangers(t)
		f(t)
	})
}

// TestMemoryIsTakenAwayUnderTraffic deregisters what the peer writes to and
// what it reads from while it does so: the request fails, nobody crashes.
func TestMemoryIsTakenAwayUnderTraffic(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		for i := range 20 {
			s := usual
			s.single = i%2 == 1
			a, b := newPair(t, s)
			warm(t, a, b)
			target, err := b.pd.AllocMR(1<<16, everyRight, verbs.MROptions{})
			require.NoError(t, err)
			source, err := a.pd.AllocMR(1<<16, everyRight, verbs.MROptions{})
			require.NoError(t, err)
			var group sync.WaitGroup
			var posted atomic.Int64
			group.Go(func() {
				wr := []verbs.SendWR{{
					Opcode: verbs.OpWrite, Flags: verbs.SendSignaled, SGL: []verbs.SGE{source.SGE(0, 1<<16)},
					RemoteAddr: target.Addr(), RKey: target.RKey(),
				}}
				wcs := make([]verbs.WC, 16)
				for { // ends with the first failure
					if n, _ := a.qp.PostSend(wr); n == 1 {
						posted.Add(1)
					}
					n, _ := a.send.Poll(wcs)
					for _, wc := range wcs[:n] {
						if wc.Status != verbs.WCSuccess {
							return
						}
					}
				}
			})
			for posted.Load() < 10 {
				runtime.Gosched()
			}
			if posted.Load()%2 == 0 {
				require.NoError(t, target.Close())
			} else {
				require.NoError(t, source.Close())
			}
			group.Wait()
		}
	})
}

// TestEverythingIsClosedUnderTraffic closes contexts while goroutines post,
// poll, arm, wait, and make MRs without memory.
func TestEverythingIsClosedUnderTraffic(t *testing.T) {
	rounds := 20
	if race.Enabled {
		rounds = 10 // in which each of the two is closed first, after each of the pauses
	}
	bothWays(t, func(t *testing.T) {
		for i := range rounds {
			a, b := newPair(t, usual)
			warm(t, a, b)
			var group sync.WaitGroup
			var stop atomic.Bool
			loop := func(f func()) {
				group.Go(func() {
					for !stop.Load() {
						f()
					}
				})
			}
			for _, e := range []*end{a, b} {
				peer := a
				if e == a {
					peer = b
				}
				loop(func() { // all errors are right here: things are being closed
					_, _ = e.qp.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend, Flags: verbs.SendInline, Inline: [][]byte{{1, 2, 3}}}})
					_, _ = e.qp.PostSend([]verbs.SendWR{{Opcode: verbs.OpWrite, Flags: verbs.SendInline, Inline: [][]byte{{1}}, RemoteAddr: peer.mr.Addr(), RKey: peer.mr.RKey()}})
				})
				loop(func() {
					var wcs [8]verbs.WC
					n, _ := e.recv.Poll(wcs[:])
					_, _ = e.qp.PostRecv(make([]verbs.RecvWR, n+1))
					_, _ = e.send.Poll(wcs[:])
				})
				loop(func() {
					if null, err := e.pd.AllocNullMR(); err == nil {
						nothing := []verbs.SGE{{Length: 5000, LKey: null.LKey()}}
						_, _ = e.qp.PostSend([]verbs.SendWR{{Opcode: verbs.OpWrite, SGL: nothing, RemoteAddr: peer.mr.Addr(), RKey: peer.mr.RKey()}})
						_ = null.Close()
					}
				})
				loop(func() {
					_ = e.recv.Arm(false)
					_ = e.ch.WaitThread(time.Now().Add(100 * time.Microsecond))
				})
			}
			time.Sleep(time.Duration(i%5) * time.Millisecond)
			first, second := a, b
			if i%2 == 0 {
				first, second = b, a
			}
			require.NoError(t, first.ctx.Close())
			time.Sleep(time.Millisecond)
			require.NoError(t, second.qp.Close())
			stop.Store(true)
			group.Wait()
		}
	})
}

// TestQPsComeAndGoUnderAPoller has one goroutine look at a CQ without a pause
// while QPs are made, used and destroyed on it.
func TestQPsComeAndGoUnderAPoller(t *testing.T) {
	soft.CheckLeaks(t)
	a, b := newEnd(t, usual), newEnd(t, usual)
	var stop atomic.Bool
	var group sync.WaitGroup
	var got atomic.Int64
	group.Go(func() {
		wcs := make([]verbs.WC, 8)
		for !stop.Load() {
			n, _ := b.recv.Poll(wcs)
			for _, wc := range wcs[:n] {
				if wc.Status == verbs.WCSuccess {
					got.Add(1)
				}
			}
		}
	})
	const rounds = 100
	for i := range rounds {
		require.NoError(t, a.qp.Close())
		require.NoError(t, b.qp.Close())
		for _, e := range []*end{a, b} {
			var err error
			e.qp, err = e.pd.CreateQP(verbs.QPInitAttr{Type: verbs.QPTypeRC, SendCQ: e.send, RecvCQ: e.recv, Cap: usual.cap})
			require.NoError(t, err)
		}
		forB, err := a.address()
		require.NoError(t, err)
		forA, err := b.address()
		require.NoError(t, err)
		require.NoError(t, a.connect(forA))
		require.NoError(t, b.connect(forB))
		_, err = b.qp.PostRecv(make([]verbs.RecvWR, 4))
		require.NoError(t, err)
		_, err = a.qp.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend, Flags: verbs.SendSignaled}})
		require.NoError(t, err)
		require.Equal(t, verbs.WCSuccess, poll(t, a.send, 1)[0].Status)
		require.Eventually(t, func() bool { return got.Load() == int64(i+1) }, 10*time.Second, 50*time.Microsecond)
		if i%10 == 0 {
			runtime.GC()
		}
	}
	stop.Store(true)
	group.Wait()
}

func TestASliceIsReachedByPeersOfTheProcess(t *testing.T) {
	a, b := newPair(t, usual)
	mem := make([]byte, 4096)
	mr, err := b.pd.RegisterMR(mem, everyRight)
	require.NoError(t, err)
	wr := []verbs.SendWR{{
		ID: 1, Opcode: verbs.OpWrite, Flags: verbs.SendInline | verbs.SendSignaled, Inline: [][]byte{[]byte("there")},
		RemoteAddr: mr.Addr() + 1, RKey: mr.RKey(),
	}}
	_, err = a.qp.PostSend(wr)
	require.NoError(t, err)
	require.Equal(t, verbs.WCSuccess, poll(t, a.send, 1)[0].Status)
	require.Equal(t, "there", string(mem[1:6]))
	require.NoError(t, mr.Close())
	_, err = a.qp.PostSend(wr)
	require.NoError(t, err)
	require.Equal(t, verbs.WCRemAccessErr, poll(t, a.send, 1)[0].Status)
}

func TestAQPMayBeItsOwnPeer(t *testing.T) {
	e := newEnd(t, usual)
	own, err := e.address()
	require.NoError(t, err)
	require.NoError(t, e.connect(own))
	warm(t, e, e)
	require.NoError(t, e.qp.Close())
}

func TestTheTestDevicesHaveTheLimitsOfHardware(t *testing.T) {
	soft.EnableTestDevice()
	list, err := verbs.Devices()
	require.NoError(t, err)
	for _, name := range []string{soft.DeviceName, soft.TestDeviceName, soft.TestNoImmName} {
		require.True(t, slices.ContainsFunc(list, func(d verbs.DeviceInfo) bool { return d.Name == name }), name)
	}
	ctx, err := verbs.Open(soft.TestDeviceName)
	require.NoError(t, err)
	require.Equal(t, 64, ctx.Attr().MaxInline)
	require.False(t, ctx.Attr().Caps.Has(verbs.CapInlineIsTransfer))
	require.True(t, ctx.Attr().Caps.Has(verbs.CapWriteWithImm))
	require.NoError(t, ctx.Close())
	ctx, err = verbs.Open(soft.TestNoImmName)
	require.NoError(t, err)
	require.Equal(t, 64, ctx.Attr().MaxInline)
	require.Zero(t, ctx.Attr().Caps&(verbs.CapWriteWithImm|verbs.CapSendWithImm|verbs.CapAtomics|verbs.CapInlineIsTransfer))
	require.NoError(t, ctx.Close())
}

// placed is what callers assert qp.Driver() to.
type placed interface {
	PublishCPU(cpu int)
	PeerCPU() (cpu int, ok bool)
	AskCPU(cpu, turn int)
	AskedCPU() (cpu, turn int, ok bool)
	PeerPID() int
}

func TestPeersTellTheirCPU(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		a, b := newPair(t, usual)
		x, y := a.qp.Driver().(placed), b.qp.Driver().(placed)
		x.PublishCPU(3) // before they are joined
		warm(t, a, b)
		warm(t, b, a)
		cpu, ok := y.PeerCPU()
		require.True(t, ok)
		require.Equal(t, 3, cpu)
		_, ok = x.PeerCPU()
		require.False(t, ok, "it has not told")
		y.PublishCPU(0)
		cpu, ok = x.PeerCPU()
		require.True(t, ok)
		require.Zero(t, cpu)
		x.PublishCPU(-1)
		_, ok = y.PeerCPU()
		require.False(t, ok)
		x.AskCPU(2, 1<<15+7)
		cpu, turn, ok := y.AskedCPU()
		require.True(t, ok)
		require.Equal(t, 2, cpu)
		require.Equal(t, 7, turn)
		x.AskCPU(-1, 0)
		_, _, ok = y.AskedCPU()
		require.False(t, ok)
		require.Positive(t, x.PeerPID())
	})
}

// The peer's end may come between two steps of a connection.
func TestAQPThatFailedOnTheWayDoesNotComeBack(t *testing.T) {
	a, b := newEnd(t, usual), newEnd(t, usual)
	forB, err := a.address()
	require.NoError(t, err)
	forA, err := b.address()
	require.NoError(t, err)
	require.NoError(t, a.connect(forA))
	require.NoError(t, b.connect(forB))
	warm(t, a, b)
	require.NoError(t, b.qp.Close())
	// The driver sees what Modify would have done had it looked before.
	err = a.qp.Driver().Modify(&verbs.QPAttr{State: verbs.QPStateRTS}, verbs.QPAttrState)
	require.ErrorIs(t, err, verbs.ErrInvalid)
	got, err := a.qp.Query()
	require.NoError(t, err)
	require.Equal(t, verbs.QPStateErr, got.State)
}

// A long-lived pair sees many regions come and go.
func TestRegionsThatAreGoneAreForgotten(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		a, b := newPair(t, usual)
		for range 300 {
			mr, err := b.pd.AllocMR(4096, everyRight, verbs.MROptions{})
			require.NoError(t, err)
			_, err = a.qp.PostSend([]verbs.SendWR{{
				Opcode: verbs.OpWrite, Flags: verbs.SendInline | verbs.SendSignaled, Inline: [][]byte{{1}}, RemoteAddr: mr.Addr(), RKey: mr.RKey(),
			}})
			require.NoError(t, err)
			require.Equal(t, verbs.WCSuccess, poll(t, a.send, 1)[0].Status)
			require.NoError(t, mr.Close())
		}
		require.LessOrEqual(t, soft.RegionsKnown(a.qp), 64)
	})
}

// Memory comes and goes in parts, and posts go on between them. What a peer unmaps
// is unmapped when posts go on.
func TestPostsDoNotWaitForMemoryOfAnySize(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		a, b := newPair(t, usual)
		const size, part = 1 << 20, 64 << 10
		mr, err := b.pd.AllocMR(size, everyRight, verbs.MROptions{Sparse: true})
		require.NoError(t, err)
		require.Equal(t, verbs.WCSuccess, a.writeTo(t, mr))
		pages := a.qp.Driver().(interface {
			PopulateRemote(rkey uint32, addr uint64, n int) error
			DiscardRemote(rkey uint32, addr uint64, n int) error
		})
		calls := func() int64 {
			asked := soft.RefuseCall(t, 0, nil)
			require.NoError(t, pages.PopulateRemote(mr.RKey(), mr.Addr(), size))
			n, _ := asked()
			return n
		}
		require.EqualValues(t, size/part, calls())
		mr.Bytes()[size/2] = 1
		require.NoError(t, pages.DiscardRemote(mr.RKey(), mr.Addr()+part, size-part))
		require.Zero(t, mr.Bytes()[size/2])
		require.NoError(t, pages.PopulateRemote(mr.RKey()+1, mr.Addr(), size), "of what is not known nothing is done")
		require.NoError(t, mr.Close())
		require.NoError(t, pages.PopulateRemote(mr.RKey(), mr.Addr(), size), "nor of what is gone")
	})
}

func TestARegionThatIsGoneIsUnmappedWithoutTheSendLock(t *testing.T) {
	soft.PairAsStrangers(t)
	a, b := newPair(t, usual)
	mr, err := b.pd.AllocMR(4096, everyRight, verbs.MROptions{})
	require.NoError(t, err)
	require.Equal(t, verbs.WCSuccess, a.writeTo(t, mr))
	locked := soft.LockedAtUnmap(t, a.qp)
	require.NoError(t, mr.Close())
	require.Eventually(t, func() bool { return soft.RegionsKnown(a.qp) == 0 }, 10*time.Second, time.Millisecond)
	require.Zero(t, locked())
}
