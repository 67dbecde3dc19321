//go:build linux

package soft_test

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft"
	"github.com/stretchr/testify/require"
)

// single is usual with the promise that calls do not overlap.
func single() shape {
	s := usual
	s.single = true
	return s
}

// exchange has one goroutine post and poll what it has posted, and one receive, of each end as fast
// as they can, until the queues are closed. Both arm now and then.
func exchange(a, b *end) (ended func(), posted *atomic.Int64) {
	var group sync.WaitGroup
	posted = new(atomic.Int64)
	for _, ends := range [][2]*end{{a, b}, {b, a}} {
		e, peer := ends[0], ends[1]
		wrs := []verbs.SendWR{
			{Opcode: verbs.OpWriteWithImm, Flags: verbs.SendInline | verbs.SendSignaled, Inline: [][]byte{{1, 2, 3}}},
			{Opcode: verbs.OpSend, Flags: verbs.SendInline, Inline: [][]byte{{4}}},
			{Opcode: verbs.OpWrite, SGL: []verbs.SGE{e.mr.SGE(0, 1<<10)}},
		}
		to := e.peer // of another process
		if peer != nil {
			to.Addr, to.RKey = peer.mr.Addr(), peer.mr.RKey()
		}
		for i := range wrs {
			wrs[i].RemoteAddr, wrs[i].RKey = to.Addr, to.RKey
		}
		group.Go(func() { // ends with the QP and the CQ
			var wcs [8]verbs.WC
			for i := 0; ; i++ {
				n, posting := e.qp.PostSend(wrs)
				posted.Add(int64(n))
				if i%8 == 0 {
					_ = e.send.Arm(false) // refused once it is closed
				}
				_, polling := e.send.Poll(wcs[:])
				if errors.Is(posting, verbs.ErrClosed) && errors.Is(polling, verbs.ErrClosed) {
					return
				}
				runtime.Gosched()
			}
		})
		receive := []verbs.RecvWR{{SGL: []verbs.SGE{e.mr.SGE(1<<10, 64)}}}
		group.Go(func() { // as above
			var wcs [8]verbs.WC
			for i := 0; ; i++ {
				_, posting := e.qp.PostRecv(receive)
				if i%8 == 0 {
					_ = e.recv.Arm(false)
				}
				_, polling := e.recv.Poll(wcs[:])
				if i%8 == 4 {
					e.recv.Disarm()
				}
				if errors.Is(posting, verbs.ErrClosed) && errors.Is(polling, verbs.ErrClosed) {
					return
				}
				runtime.Gosched()
			}
		})
		if peer == nil {
			break
		}
	}
	return group.Wait, posted
}

// Whatever else a program does with single-threaded queues may be done while their data path runs,
// and waits for it no longer than for one call.
func TestEverythingElseMayBeDoneBesidePostsAndPolls(t *testing.T) {
	type cpus interface {
		PublishCPU(int)
		PeerCPU() (int, bool)
	}
	ends := map[string]func(a, b *end) error{
		"modify": func(a, _ *end) error {
			for range 20 {
				err := a.qp.Modify(verbs.QPAttr{State: verbs.QPStateSQD}, verbs.QPAttrState)
				if err == nil {
					err = a.qp.Modify(verbs.QPAttr{State: verbs.QPStateRTS, MinRNRTimer: 2}, verbs.QPAttrState|verbs.QPAttrMinRNRTimer)
				}
				if err != nil {
					return err
				}
			}
			return nil
		},
		"query": func(a, _ *end) error {
			for range 20 {
				if _, err := a.qp.Query(); err != nil {
					return err
				}
			}
			return nil
		},
		"fail":       func(a, _ *end) error { return a.qp.Fail() },
		"reset":      func(a, _ *end) error { return a.qp.Modify(verbs.QPAttr{State: verbs.QPStateReset}, verbs.QPAttrState) },
		"close":      func(a, _ *end) error { return a.qp.Close() },
		"peer fails": func(_, b *end) error { return b.qp.Fail() },
		"peer goes":  func(_, b *end) error { return b.close() },
		"memory": func(a, b *end) error {
			mr, err := a.pd.AllocMR(1<<12, everyRight, verbs.MROptions{})
			if err != nil {
				return err
			}
			return errors.Join(mr.Close(), b.mr.Close(), a.mr.Close())
		},
		"resize": func(a, _ *end) error { return errors.Join(a.send.Resize(2048), a.recv.Resize(2048)) },
		"cpus": func(a, b *end) error {
			for i := range 100 {
				a.qp.Driver().(cpus).PublishCPU(i)
				b.qp.Driver().(cpus).PeerCPU()
			}
			return nil
		},
	}
	rounds := 10
	if testing.Short() {
		rounds = 3
	}
	for name, act := range ends {
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(t *testing.T) {
				for round := range rounds {
					a, b := newPair(t, single())
					warm(t, a, b)
					ended, posted := exchange(a, b)
					for posted.Load() < int64(10+round*37) {
						time.Sleep(10 * time.Microsecond)
					}
					require.NoError(t, act(a, b))
					require.NoError(t, a.close())
					require.NoError(t, b.close())
					ended() // by ErrClosed
				}
			})
		})
	}
}

func TestAPeerMayDieBesidePostsAndPolls(t *testing.T) {
	soft.CheckLeaks(t)
	rounds := 20
	if testing.Short() {
		rounds = 5
	}
	for range rounds {
		e, err := makeEnd(single())
		require.NoError(t, err)
		c, err := spawn("echo", e)
		require.NoError(t, err)
		ended, posted := exchange(e, nil)
		require.Eventually(t, func() bool { return posted.Load() > 0 }, 10*time.Second, 100*time.Microsecond)
		c.kill()
		require.Eventually(t, func() bool {
			attr, err := e.qp.Query()
			return err == nil && attr.State == verbs.QPStateErr
		}, 10*time.Second, 100*time.Microsecond)
		require.NoError(t, e.close())
		ended() // by ErrClosed
	}
}

// The promise costs no memory either.
func TestSingleThreadedPostsAndPollsAllocateNothing(t *testing.T) {
	a, b := newPair(t, single())
	warm(t, a, b)
	wr := []verbs.SendWR{{
		Opcode: verbs.OpWriteWithImm, Flags: verbs.SendInline | verbs.SendSignaled, Inline: [][]byte{{1, 2, 3}}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(),
	}}
	recv := make([]verbs.RecvWR, 1)
	wcs := make([]verbs.WC, 4)
	require.Zero(t, testing.AllocsPerRun(200, func() {
		if _, err := b.qp.PostRecv(recv); err != nil {
			t.Fatal(err)
		}
		if n, err := a.qp.PostSend(wr); n != 1 {
			t.Fatal(err)
		}
		if err := b.recv.Arm(false); err != nil {
			t.Fatal(err)
		}
		if n, err := b.recv.Poll(wcs); n != 1 || wcs[0].Status != verbs.WCSuccess {
			t.Fatal(n, err)
		}
		b.recv.Disarm()
		if n, err := a.send.Poll(wcs); n != 1 || wcs[0].Status != verbs.WCSuccess {
			t.Fatal(n, err)
		}
	}))
}
