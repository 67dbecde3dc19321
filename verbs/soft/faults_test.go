//go:build linux

package soft_test

import (
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/race"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft"
	"github.com/stretchr/testify/require"
)

func TestCompletionsAreWithheldForTheDelay(t *testing.T) {
	a, b := newPair(t, usual)
	warm(t, a, b)
	const delay = 30 * time.Millisecond
	soft.InjectFaults(b.ctx, &soft.Faults{CompletionDelay: delay})
	_, err := b.qp.PostRecv(make([]verbs.RecvWR, 2))
	require.NoError(t, err)
	began := time.Now()
	_, err = a.qp.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend}, {Opcode: verbs.OpSend}})
	require.NoError(t, err)
	wcs := make([]verbs.WC, 2)
	got := 0
	for got < 2 { // by the book: poll, arm, poll, wait
		n, err := b.recv.Poll(wcs)
		require.NoError(t, err)
		if got += n; n > 0 {
			continue
		}
		require.NoError(t, b.recv.Arm(false))
		if n, err = b.recv.Poll(wcs); n > 0 {
			got += n
			continue
		}
		require.NoError(t, err)
		require.NoError(t, b.ch.Wait(time.Now().Add(10*time.Second)))
	}
	require.GreaterOrEqual(t, time.Since(began), delay)
	soft.InjectFaults(b.ctx, nil)
	warm(t, a, b)
}

func TestCompletionsComeInBatches(t *testing.T) {
	a, b := newPair(t, usual)
	warm(t, a, b)
	soft.InjectFaults(b.ctx, &soft.Faults{CompletionBatch: 4, CompletionDelay: time.Hour})
	_, err := b.qp.PostRecv(make([]verbs.RecvWR, 8))
	require.NoError(t, err)
	wcs := make([]verbs.WC, 8)
	for i := range 8 {
		_, err = a.qp.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend}})
		require.NoError(t, err)
		n, err := b.recv.Poll(wcs)
		require.NoError(t, err)
		if want := i % 4 / 3 * 4; n != want {
			require.Equal(t, want, n, "after %d messages", i+1)
		}
	}
}

func TestASlowConsumerTakesItsTime(t *testing.T) {
	a, b := newPair(t, usual)
	warm(t, a, b)
	soft.InjectFaults(b.ctx, &soft.Faults{SlowConsumer: 2 * time.Millisecond})
	_, err := b.qp.PostRecv(make([]verbs.RecvWR, 5))
	require.NoError(t, err)
	_, err = a.qp.PostSend(make([]verbs.SendWR, 0))
	require.NoError(t, err)
	for range 5 {
		_, err = a.qp.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend}})
		require.NoError(t, err)
	}
	began := time.Now()
	poll(t, b.recv, 5)
	require.GreaterOrEqual(t, time.Since(began), 10*time.Millisecond)
}

func TestForcedRNRDelaysAndLosesNothing(t *testing.T) {
	a, b := newPair(t, usual)
	before, counted := a.ctx.RNRs()
	require.True(t, counted)
	soft.InjectFaults(a.ctx, &soft.Faults{RNREvery: 3})
	_, err := b.qp.PostRecv(make([]verbs.RecvWR, 40))
	require.NoError(t, err)
	for i := range uint32(40) {
		_, err = a.qp.PostSend([]verbs.SendWR{{Opcode: verbs.OpSendWithImm, Imm: i}})
		require.NoError(t, err)
	}
	for i, wc := range poll(t, b.recv, 40) {
		require.EqualValues(t, i, wc.Imm)
	}
	now, _ := a.ctx.RNRs()
	require.GreaterOrEqual(t, now-before, uint64(40/3), "each was counted")
}

func TestARequestThatFindsNoReceiveIsCountedOnce(t *testing.T) {
	shared := usual
	shared.srq = true
	for name, s := range map[string]shape{"own receives": usual, "shared receives": shared} {
		t.Run(name, func(t *testing.T) {
			a, b := newPair(t, s)
			before, _ := a.ctx.RNRs()
			const requests = 3
			for range requests {
				_, err := a.qp.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend}})
				require.NoError(t, err)
				// it is tried again and again
				for end := time.Now().Add(50 * time.Millisecond); time.Now().Before(end); {
					n, err := b.recv.Poll(make([]verbs.WC, 1))
					require.NoError(t, err)
					require.Zero(t, n)
					time.Sleep(time.Millisecond)
				}
				b.postRecv(t)
				poll(t, b.recv, 1)
			}
			now, _ := a.ctx.RNRs()
			require.EqualValues(t, requests, now-before)
		})
	}
}

func TestAPostFailsTheQP(t *testing.T) {
	a, b := newPair(t, usual)
	warm(t, a, b)
	soft.InjectFaults(a.ctx, &soft.Faults{FailPostAt: 3})
	_, err := b.qp.PostRecv(make([]verbs.RecvWR, 3))
	require.NoError(t, err)
	for i := range uint64(3) {
		_, err = a.qp.PostSend([]verbs.SendWR{{ID: i, Opcode: verbs.OpSend, Flags: verbs.SendSignaled}})
		require.NoError(t, err)
	}
	wcs := poll(t, a.send, 3)
	require.Equal(t, []verbs.WCStatus{verbs.WCSuccess, verbs.WCSuccess, verbs.WCWRFlushErr}, []verbs.WCStatus{wcs[0].Status, wcs[1].Status, wcs[2].Status})
	ev, err := a.ctx.NextEvent()
	require.NoError(t, err)
	require.Equal(t, verbs.AsyncEvent{Type: verbs.EventQPFatal, QPN: a.qp.Num()}, ev)
	require.Equal(t, verbs.WCWRFlushErr, poll(t, b.recv, 3)[2].Status)
}

func TestADroppedPeerLooksLikeADeadOne(t *testing.T) {
	for name, prepare := range map[string]func(testing.TB){"in one process": func(testing.TB) {}, "between strangers": soft.PairAsStrangers} {
		t.Run(name, func(t *testing.T) {
			soft.CheckLeaks(t)
			prepare(t)
			a, b := newPair(t, usual)
			warm(t, a, b)
			soft.InjectFaults(a.ctx, &soft.Faults{DropPeerAt: 2})
			for _, e := range []*end{a, b} {
				_, err := e.qp.PostRecv(make([]verbs.RecvWR, 3))
				require.NoError(t, err)
			}
			for range 2 {
				_, err := a.qp.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend}})
				require.NoError(t, err)
			}
			for _, e := range []*end{a, b} {
				require.Equal(t, verbs.WCWRFlushErr, poll(t, e.recv, 3)[2].Status)
			}
		})
	}
}

// TestEveryFailedCallIsACleanError makes each call fail in turn, at each place
// where it is made, and looks at what is left.
func TestEveryFailedCallIsACleanError(t *testing.T) {
	calls := map[string]func(f *soft.Faults) *soft.FailCall{
		"AllocMR":    func(f *soft.Faults) *soft.FailCall { return &f.FailAllocMR },
		"memfd":      func(f *soft.Faults) *soft.FailCall { return &f.FailMemfd },
		"mmap":       func(f *soft.Faults) *soft.FailCall { return &f.FailMmap },
		"socketpair": func(f *soft.Faults) *soft.FailCall { return &f.FailSocketpair },
	}
	errnos := []syscall.Errno{syscall.ENOMEM, syscall.EMFILE, syscall.EPERM}
	if race.Enabled {
		errnos = errnos[:1] // what is undone is the same
	}
	for name, call := range calls {
		for at := 1; at <= 5; at++ {
			for _, errno := range errnos {
				t.Run(fmt.Sprintf("%s/%d/%d", name, at, errno), func(t *testing.T) {
					soft.CheckLeaks(t)
					soft.PairAsStrangers(t)
					soft.GiveUpSoon(t)
					f := &soft.Faults{}
					*call(f) = soft.FailCall{At: at, Err: errno}
					if err := transferOnce(t, f); err != nil {
						require.ErrorIs(t, err, errno)
					} else {
						require.Greater(t, at, 1, "the first call has to fail")
					}
				})
			}
		}
	}
}

// transferOnce makes a pair with faults on one side and moves a message. The
// error is that of a call; a request that fails is not one.
func transferOnce(t *testing.T, f *soft.Faults) error {
	honest := newEnd(t, usual)
	e := &end{}
	var err error
	e.ctx, err = verbs.Open(soft.DeviceName)
	require.NoError(t, err)
	defer e.ctx.Close()
	soft.InjectFaults(e.ctx, f)
	if err := e.populate(usual); err != nil {
		return err
	}
	forHonest, err := e.address()
	require.NoError(t, err)
	forFaulty, err := honest.address()
	require.NoError(t, err)
	// In this order: e may fail to map what honest has, and hang up, as soon as it
	// dials, which ends honest's QP; honest is to be in RTS by then.
	require.NoError(t, honest.connect(forHonest))
	require.NoError(t, e.connect(forFaulty))
	_, err = honest.qp.PostRecv(make([]verbs.RecvWR, 1))
	require.NoError(t, err)
	_, err = e.qp.PostSend([]verbs.SendWR{{
		Opcode: verbs.OpWriteWithImm, Flags: verbs.SendInline | verbs.SendSignaled, Inline: [][]byte{{1}}, RemoteAddr: forFaulty.Addr, RKey: forFaulty.RKey,
	}})
	require.NoError(t, err)
	sent := poll(t, e.send, 1)[0]
	received := poll(t, honest.recv, 1)[0]
	require.Equal(t, sent.Status == verbs.WCSuccess, received.Status == verbs.WCSuccess)
	return nil
}

// TestRunningOutOfDescriptorsIsACleanError does the same with the real limit,
// in a process of its own.
func TestRunningOutOfDescriptorsIsACleanError(t *testing.T) {
	runAlone(t, "few-descriptors")
}

func fewDescriptors() error {
	// Go's runtime ends the process if its poller, made with the first timer,
	// finds no descriptor left.
	time.AfterFunc(time.Hour, func() {}).Stop()
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	failed := 0
	for room := 0; room < 40; room++ {
		limit.Cur = uint64(len(open) + room)
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
			return err
		}
		e, err := makeEnd(usual)
		if e.ctx != nil {
			if err := e.ctx.Close(); err != nil {
				return err
			}
		}
		switch {
		case err == nil && failed == 0:
			return fmt.Errorf("no call failed with %d descriptors", limit.Cur)
		case err == nil:
			limit.Cur = limit.Max
			if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
				return err
			}
			now, err := os.ReadDir("/proc/self/fd")
			if err == nil && len(now) > len(open) {
				err = fmt.Errorf("%d descriptors, %d before", len(now), len(open))
			}
			return err
		}
		failed++
	}
	return fmt.Errorf("no success with 40 descriptors")
}

func TestACQThatOverflowsIsBroken(t *testing.T) {
	s := usual
	s.cqe = 4
	a, b := newPair(t, s)
	warm(t, a, b)
	for range 5 {
		_, err := a.qp.PostSend([]verbs.SendWR{{Opcode: verbs.OpWrite, Flags: verbs.SendSignaled}})
		require.NoError(t, err)
	}
	_, err := a.send.Poll(make([]verbs.WC, 1))
	require.Error(t, err)
	ev, err := a.ctx.NextEvent()
	require.NoError(t, err)
	require.Equal(t, verbs.AsyncEvent{Type: verbs.EventCQErr, CQ: a.send}, ev)
	ev, err = a.ctx.NextEvent()
	require.NoError(t, err)
	require.Equal(t, verbs.AsyncEvent{Type: verbs.EventQPFatal, QPN: a.qp.Num()}, ev)
}
