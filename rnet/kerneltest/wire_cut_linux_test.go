package kerneltest

import (
	"net"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
	"github.com/seed-b9b531af/ramjet/rnet/internal/mux"
	"github.com/seed-b9b531af/ramjet/rnet/internal/traffic"
)

// cutWire lets nothing through in either direction, without a word to those
// who use the wire, until the returned function is called.
func cutWire(t testing.TB) (mend func()) {
	t.Helper()
	for _, module := range []string{"sch_netem", "sch_ingress", "cls_matchall", "act_gact"} {
		run(t, "modprobe", module)
	}
	run(t, "tc", "qdisc", "replace", "dev", "eth0", "root", "netem", "loss", "100%")
	run(t, "tc", "qdisc", "add", "dev", "eth0", "ingress")
	run(t, "tc", "filter", "add", "dev", "eth0", "ingress", "matchall", "action", "drop")
	mended := false
	mend = func() {
		if !mended {
			mended = true
			run(t, "tc", "qdisc", "delete", "dev", "eth0", "ingress")
			run(t, "tc", "qdisc", "delete", "dev", "eth0", "root")
		}
	}
	t.Cleanup(mend)
	return mend
}

// awaitLoss waits until all goroutines that use what is lost have their errors, and logs when.
func awaitLoss(t testing.TB, b *traffic.Waiters, begun time.Time) {
	t.Helper()
	awaitFailure(t, b.Wait)
	first, last := slices.MinFunc(b.Told(), time.Time.Compare).Sub(begun), slices.MaxFunc(b.Told(), time.Time.Compare).Sub(begun)
	t.Logf("noticed after %v to %v", first, last)
	require.Less(t, last, failureTime+slowness)
}

// A call that waits for a peer that cannot be reached any more fails, whatever
// it waits for, and dials reach the peer once the wire is back. So does one whose peer
// was there but took nothing, so that nothing could be sent to it.
func TestWireIsCut(t *testing.T) {
	overWire(t, func(t *testing.T, k device) {
		stopped := startOnPeer(t, "wireserve", k.name)
		stoppedAt := stopped.line(t)
		var full []net.Conn
		for range 4 { // windows of more than the ring
			full = append(full, dialMode(t, wireDialer(k.name), stoppedAt, traffic.Sink))
		}
		onPeer(t, "kill", "-STOP", stopped.pid)
		var held traffic.Waiters
		for _, c := range full {
			held.Add(t, func() error { _, err := c.Write(make([]byte, 64<<10)); return err })
		}
		// the peer is there, and so it is waited for
		time.Sleep(link.KeepAlivePeriod + 5*time.Second)
		require.Empty(t, held.Told())

		address := startOnPeer(t, "wireserve", k.name).line(t)
		var b traffic.Waiters
		for _, mode := range []byte(traffic.AllModes) {
			b.Use(t, dialMode(t, wireDialer(k.name), address, mode), mode)
		}
		awaitTraffic(t, 1)
		// A session on which nothing happens, but that somebody waits.
		idle := dialMode(t, &rnet.Dialer{Transport: rnet.RDMA, Device: k.name, Dedicated: true}, address, traffic.Silent)
		b.Add(t, func() error { _, err := idle.Read(make([]byte, 1)); return err })

		begun := time.Now()
		mend := cutWire(t)
		awaitLoss(t, &b, begun)
		awaitLoss(t, &held, begun)
		mend()
		onPeer(t, "kill", "-CONT", stopped.pid)
		k.requireExchange(t, address)
		k.requireExchange(t, stoppedAt)
	})
}

// A wire that is away for a second (a switch that restarts, a cable that is
// changed) may cost sessions, and nothing else.
func TestWireIsAwayForASecond(t *testing.T) {
	overWire(t, func(t *testing.T, k device) {
		server := startOnPeer(t, "wireserve", k.name)
		address := server.line(t)
		done := make(chan wireReport)
		go func() { done <- exchangesThrough(wireDialer(k.name), address, 8, 2<<20) }()
		awaitTraffic(t, 0)
		mend := cutWire(t)
		time.Sleep(time.Second)
		mend()
		report := <-done // ended by the data, or its time limit
		t.Log(report)
		require.Empty(t, report.errs)
		k.requireExchange(t, address)
	})
}

// Close gives the network a second for what was written, and no more.
func TestWireCloseGivesUpWhenTheWireIsCut(t *testing.T) {
	overWire(t, func(t *testing.T, k device) {
		address := startOnPeer(t, "wireserve", k.name).line(t)
		c := dialMode(t, wireDialer(k.name), address, traffic.Sink)
		mend := cutWire(t)
		_, err := c.Write(make([]byte, 64<<10))
		require.NoError(t, err)
		begun := time.Now()
		require.NoError(t, c.Close())
		took := time.Since(begun)
		t.Logf("Close returned after %v", took)
		require.GreaterOrEqual(t, took, mux.FlushTime)
		require.Less(t, took, mux.FlushTime+slowness)
		mend()
		k.requireExchange(t, address)
	})
}
