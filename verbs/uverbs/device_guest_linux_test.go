package uverbs_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/pingpong"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// endsOf makes two connected ends on one device, in contexts of their own.
func endsOf(t testing.TB, device string) (a, b *pingpong.End) {
	t.Helper()
	ends := [2]*pingpong.End{}
	for i := range ends {
		e := &pingpong.End{Game: pingpong.Game{Device: device, Size: 4096}}
		require.NoError(t, e.Prepare(pingpong.PathOf))
		ends[i] = e
	}
	a, b = ends[0], ends[1]
	require.NoError(t, a.Connect(b.Address()))
	require.NoError(t, b.Connect(a.Address()))
	return a, b
}

func rxeEnds(t testing.TB) (a, b *pingpong.End) {
	t.Helper()
	requireDevice(t, "rxe0")
	a, b = endsOf(t, "rxe0")
	t.Cleanup(func() {
		require.NoError(t, a.Ctx.Close())
		require.NoError(t, b.Ctx.Close())
	})
	return a, b
}

// one waits for a completion.
func one(t testing.TB, cq *verbs.CQ) verbs.WC {
	t.Helper()
	var wcs [1]verbs.WC
	for deadline := time.Now().Add(30 * time.Second); ; {
		n, err := cq.Poll(wcs[:])
		require.NoError(t, err)
		if n == 1 {
			return wcs[0]
		}
		require.True(t, time.Now().Before(deadline), "no completion")
		time.Sleep(50 * time.Microsecond)
	}
}

func TestPostPollAndArmAllocateNothing(t *testing.T) {
	t.Run("rxe", func(t *testing.T) {
		requireNoAllocations(t, rxeEnds)
	})
	t.Run("siw", func(t *testing.T) {
		requireNoAllocations(t, siwEnds)
	})
}

func requireNoAllocations(t *testing.T, ends func(testing.TB) (a, b *pingpong.End)) {
	a, b := ends(t)
	var wcs [4]verbs.WC
	recv := b.Recv[:1]
	deadline := time.Now().Add(pingpong.Patience)
	allocations := testing.AllocsPerRun(200, func() {
		_ = a.CQ.Arm(false)
		_, _ = a.QP.PostSend(a.Send)
		for got := 0; got < 2; { // the SEND's at a, the receive's at b
			for _, cq := range [...]*verbs.CQ{a.CQ, b.CQ} {
				n, err := cq.Poll(wcs[:])
				if err != nil || n > 0 && wcs[0].Status != verbs.WCSuccess || time.Now().After(deadline) {
					t.Fatal("a message did not arrive:", err, wcs[0])
				}
				got += n
			}
		}
		_, _ = b.QP.PostRecv(recv)
		if err := a.Channel.Wait(deadline); err != nil { // ends with the event of the SEND
			t.Fatal(err)
		}
		_ = a.Channel.WaitThread(soon)
	})
	require.Zero(t, allocations)
}

// soon is over.
var soon = time.Unix(1, 0)

func TestACompletionQueueThatOverrunsSaysSo(t *testing.T) {
	a, b := rxeEnds(t)
	pd, err := a.Ctx.AllocPD()
	require.NoError(t, err)
	small, err := a.Ctx.CreateCQ(verbs.CQAttr{CQE: 3}, nil)
	require.NoError(t, err)
	qp, err := pd.CreateQP(verbs.QPInitAttr{
		Type: verbs.QPTypeRC, SendCQ: small, RecvCQ: small, Cap: verbs.QPCap{MaxSendWR: 20, MaxSendSGE: 1},
	})
	require.NoError(t, err)
	require.NoError(t, qp.Modify(verbs.QPAttr{State: verbs.QPStateInit, Port: 1},
		verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess))
	require.NoError(t, b.QP.Modify(verbs.QPAttr{State: verbs.QPStateReset}, verbs.QPAttrState))
	require.NoError(t, b.QP.Modify(verbs.QPAttr{State: verbs.QPStateInit, Port: 1},
		verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess))
	_, err = b.QP.PostRecv(b.Recv)
	require.NoError(t, err)
	require.NoError(t, b.Connect(a.Path.Address(qp)))
	require.NoError(t, a.Path.Connect(qp, verbs.QPTypeRC, b.Address()))
	for range 20 {
		n, err := qp.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend, Flags: verbs.SendSignaled}})
		require.NoError(t, err)
		require.Equal(t, 1, n)
	}
	ev, err := nextEvent(a.Ctx)
	require.NoError(t, err)
	require.Equal(t, verbs.AsyncEvent{Type: verbs.EventCQErr, CQ: small}, ev)
	var wcs [8]verbs.WC
	require.Eventually(t, func() bool {
		n, err := small.Poll(wcs[:])
		return n == 0 && err != nil
	}, 20*time.Second, time.Millisecond, "what is there can be polled, and then there is an error")
}

func TestPortEventsFollowTheNetworkInterface(t *testing.T) {
	requireDevice(t, "rxe0")
	ownRxe(t, "rxe8")
	ctx, err := verbs.Open("rxe8")
	require.NoError(t, err)
	defer ctx.Close()
	for _, step := range []struct {
		set  string
		want verbs.EventType
	}{{"down", verbs.EventPortErr}, {"up", verbs.EventPortActive}} {
		run(t, "ip", "link", "set", "dummy1", step.set)
		for { // GIDs come and go with the addresses
			ev, err := nextEvent(ctx)
			require.NoError(t, err)
			if ev.Type != verbs.EventGIDChange {
				require.Equal(t, verbs.AsyncEvent{Type: step.want, Port: 1}, ev)
				break
			}
		}
	}
}

// nextEvent waits for an event, and closes the context if none comes within
// pingpong.Patience, which ends the wait too.
func nextEvent(ctx *verbs.Context) (verbs.AsyncEvent, error) {
	defer time.AfterFunc(pingpong.Patience, func() { _ = ctx.Close() }).Stop()
	return ctx.NextEvent()
}

func run(t testing.TB, name string, args ...string) {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	require.NoError(t, err, "%s %v: %s", name, args, out)
}

// ownRxe adds a device on dummy1, whose address is 10.0.1.1, and removes it
// when the test ends.
func ownRxe(t testing.TB, name string) {
	t.Helper()
	run(t, "rdma", "link", "add", name, "type", "rxe", "netdev", "dummy1")
	// it may be gone already
	t.Cleanup(func() { _ = exec.Command("rdma", "link", "delete", name).Run() })
	require.Eventually(t, func() bool {
		_, err := os.Stat("/sys/class/infiniband/" + name)
		return err == nil
	}, 10*time.Second, 10*time.Millisecond)
}

func TestRemovalOfTheDeviceEndsEverything(t *testing.T) {
	requireDevice(t, "rxe0")
	ownRxe(t, "rxe9")
	before := resources(t)
	a, b := endsOf(t, "rxe9")
	ended := make(chan string, 8)
	var waiters sync.WaitGroup
	wait := func(what string, f func() error) {
		waiters.Go(func() {
			for {
				if err := f(); err != nil {
					ended <- fmt.Sprintf("%s: %v", what, err)
					return
				}
			}
		})
	}
	wait("Wait", func() error { return a.Channel.Wait(time.Time{}) })
	wait("WaitThread", func() error { return b.Channel.WaitThread(time.Time{}) })
	wait("Poll", func() error {
		var wcs [4]verbs.WC
		_, err := b.CQ.Poll(wcs[:])
		time.Sleep(100 * time.Microsecond)
		return err
	})
	wait("traffic", func() error {
		var wcs [4]verbs.WC
		if n, err := a.QP.PostSend(a.Send); n == 0 && err != verbs.ErrQueueFull {
			return err
		}
		n, err := a.CQ.Poll(wcs[:])
		_, _ = b.QP.PostRecv(b.Recv[:1])
		_ = n
		return err
	})
	removed := make(chan error, 1)
	go func() { removed <- exec.Command("rdma", "link", "delete", "rxe9").Run() }()
	for _, ctx := range []*verbs.Context{a.Ctx, b.Ctx} {
		ev, err := nextEvent(ctx) // ends with the removal
		require.NoError(t, err)
		require.Equal(t, verbs.EventDeviceFatal, ev.Type)
	}
	waiters.Wait() // ends with the removal
	close(ended)
	for what := range ended {
		require.Contains(t, what, "removed")
	}
	_, err := a.QP.PostSend(a.Send)
	require.ErrorIs(t, err, verbs.ErrClosed)
	_, err = b.QP.PostRecv(b.Recv[:1])
	require.ErrorIs(t, err, verbs.ErrClosed)
	require.ErrorIs(t, a.CQ.Arm(false), verbs.ErrClosed)
	require.ErrorIs(t, a.Channel.Wait(time.Time{}), verbs.ErrClosed)
	require.NoError(t, a.Ctx.Close())
	require.NoError(t, b.Ctx.Close())
	require.NoError(t, <-removed) // the kernel has waited for us
	_, err = verbs.Open("rxe9")
	require.ErrorIs(t, err, verbs.ErrNoDevice)
	require.Equal(t, before, resources(t))
}

// held is what a process has of the kernel.
type held struct {
	descriptors int
	mappings    int // of uverbs devices
	pinned      string
}

func resources(t testing.TB) held {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	status, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	h := held{descriptors: len(fds), mappings: strings.Count(string(maps), "/uverbs")}
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "VmPin:") {
			h.pinned = strings.TrimSpace(line)
		}
	}
	return h
}

func TestNothingIsLeftOfClosedContexts(t *testing.T) {
	requireDevice(t, "rxe0")
	play := func() {
		a, b := endsOf(t, "rxe0")
		_, err := a.QP.PostSend(a.Send)
		require.NoError(t, err)
		require.Equal(t, verbs.WCSuccess, one(t, b.CQ).Status)
		require.NoError(t, a.Ctx.Close())
		require.NoError(t, b.Ctx.Close())
	}
	play() // what is opened once stays: the netpoller, pages for commands
	before := resources(t)
	for range 30 {
		play()
	}
	require.Equal(t, before, resources(t))
	out, err := exec.Command("rdma", "resource", "show", "rxe0").Output()
	require.NoError(t, err)
	require.NotContains(t, string(out), fmt.Sprintf("pid %d", os.Getpid()))
}

// TestCloseMayComeAtAnyMoment closes objects in any order while others post,
// poll, arm and wait: nobody may touch memory that is unmapped.
func TestCloseMayComeAtAnyMoment(t *testing.T) {
	requireDevice(t, "rxe0")
	for round := range 9 {
		a, b := endsOf(t, "rxe0")
		var busy sync.WaitGroup
		stop := make(chan struct{})
		for _, f := range []func(){
			func() { _, _ = a.QP.PostSend(a.Send) },
			func() { _, _ = b.QP.PostRecv(b.Recv[:2]) },
			func() { var w [3]verbs.WC; _, _ = a.CQ.Poll(w[:]) },
			func() { var w [3]verbs.WC; _, _ = b.CQ.Poll(w[:]) },
			func() { _ = b.CQ.Arm(false) },
			func() { _ = b.Channel.Wait(time.Now().Add(time.Millisecond)) },
			func() { _ = a.Channel.WaitThread(time.Now().Add(time.Millisecond)) },
			func() { _, _ = a.QP.Query() },
			func() { _ = a.CQ.Resize(700) },
		} {
			busy.Go(func() {
				for {
					select { // never waits
					case <-stop:
						return
					default:
						f()
					}
				}
			})
		}
		time.Sleep(2 * time.Millisecond)
		closes := []func() error{a.QP.Close, a.Channel.Close, a.CQ.Close, a.MR.Close, b.QP.Close, b.CQ.Close, b.Channel.Close, b.MR.Close, b.Ctx.Close}
		for i := range closes {
			_ = closes[(i*4+round)%len(closes)]() // the order makes some of them refuse
		}
		require.NoError(t, a.Ctx.Close())
		close(stop)
		busy.Wait() // ends with stop
		_ = b.Ctx.Close()
	}
}

func TestAnSRQChangesItsSize(t *testing.T) {
	requireDevice(t, "rxe0")
	ctx := open(t, "rxe0")
	pd, err := ctx.AllocPD()
	require.NoError(t, err)
	srq, err := pd.CreateSRQ(verbs.SRQAttr{MaxWR: 10, MaxSGE: 3})
	require.NoError(t, err)
	fill := func(min int) int {
		t.Helper()
		for n := 0; ; n++ {
			k, err := srq.PostRecv([]verbs.RecvWR{{ID: uint64(n)}})
			if k == 0 {
				require.ErrorIs(t, err, verbs.ErrQueueFull)
				require.GreaterOrEqual(t, n, min)
				return n
			}
		}
	}
	first := fill(10)
	require.ErrorIs(t, srq.Modify(verbs.SRQAttr{MaxWR: first / 2}, verbs.SRQAttrMaxWR), verbs.ErrInvalid, "more wait than that")
	require.NoError(t, srq.Modify(verbs.SRQAttr{MaxWR: 500}, verbs.SRQAttrMaxWR))
	attr, err := srq.Query()
	require.NoError(t, err)
	require.GreaterOrEqual(t, attr.MaxWR, 500)
	require.Equal(t, attr.MaxWR-first, fill(500-first), "those that waited are there still")
}

// childEnv makes this program do what a test wants done in another process.
const childEnv = "UVERBS_TEST_CHILD"

// inChild runs a test of this program again, in a process of its own.
func inChild(t *testing.T) (child bool) {
	t.Helper()
	if os.Getenv(childEnv) == t.Name() {
		return true
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), childEnv+"="+t.Name())
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: "+t.Name())
	return false
}

func TestAProcessThatChangesItsUserGoesOn(t *testing.T) {
	requireDevice(t, "rxe0")
	if !inChild(t) {
		return
	}
	a, b := rxeEnds(t)
	require.NoError(t, syscall.Setuid(1000))
	for range 10 {
		_, err := a.QP.PostSend(a.Send)
		require.NoError(t, err, "the doorbell goes another way")
		require.Equal(t, verbs.WCSuccess, one(t, a.CQ).Status)
		require.Equal(t, verbs.WCSuccess, one(t, b.CQ).Status)
		require.NoError(t, b.CQ.Arm(false))
	}
	qp, err := a.QP.PD().CreateQP(a.QP.Attr())
	require.NoError(t, err)
	require.NoError(t, qp.Close())
}

func TestMemoryBeyondTheLimitIsRefused(t *testing.T) {
	requireDevice(t, "rxe0")
	if !inChild(t) {
		return
	}
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: 64 << 10, Max: 64 << 10}))
	require.NoError(t, syscall.Setuid(1000))
	ctx := open(t, "rxe0")
	pd, err := ctx.AllocPD()
	require.NoError(t, err)
	pinned := verbs.PinnedBytes()
	_, err = pd.AllocMR(1<<20, verbs.AccessLocalWrite, verbs.MROptions{})
	require.ErrorIs(t, err, syscall.ENOMEM)
	require.ErrorContains(t, err, "RLIMIT_MEMLOCK")
	require.Equal(t, pinned, verbs.PinnedBytes())
	mr, err := pd.AllocMR(16<<10, verbs.AccessLocalWrite, verbs.MROptions{})
	require.NoError(t, err, "a smaller one fits")
	require.NoError(t, mr.Close())
}
