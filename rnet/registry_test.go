package rnet

import (
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/rnet/internal/traffic"
)

// sumOf returns what the sessions over a device of the software HCA came to.
func sumOf(t testing.TB, device string) DeviceStats {
	t.Helper()
	for _, d := range ReadStats().Devices {
		if d.Device == device && d.Transport == Soft {
			return d
		}
	}
	return DeviceStats{}
}

func TestEndedSessionsStayInTheSumsOfTheirDevice(t *testing.T) {
	awaitNoSessions(t)
	before := sumOf(t, "soft0")
	require.Zero(t, before.Sessions)
	k := overSoft
	k.dedicated = true
	dialed, accepted := k.pair(t)
	const n = 10_000
	await := hang.Start(t, func() { assert.NoError(t, traffic.Write(dialed, traffic.NewRand(1), 1, n, n)) })
	require.NoError(t, traffic.Read(accepted, traffic.NewRand(2), 1, n, n))
	await()
	during := sumOf(t, "soft0")
	require.Equal(t, 2, during.Sessions)
	require.Equal(t, 2, during.Streams)

	dialed.Close()
	accepted.Close()
	awaitNoSessions(t)
	after := sumOf(t, "soft0")
	require.Zero(t, after.Sessions)
	require.Zero(t, after.Streams)
	require.EqualValues(t, 2, after.SessionsOpened-before.SessionsOpened)
	require.EqualValues(t, 2, after.StreamsOpened-before.StreamsOpened)
	require.EqualValues(t, n, after.BytesIn-before.BytesIn)
	require.EqualValues(t, n, after.BytesOut-before.BytesOut)
	require.True(t, after.RNRsCounted, "it was asked when it was closed")
}

// A device with several ports has sums for each, and one count.
func TestASumOfAPortHasTheCountOfItsDevice(t *testing.T) {
	d, err := acquireDevice("soft0")
	require.NoError(t, err)
	defer d.release()
	devices.mu.Lock()
	devices.open["other0"] = d
	devices.mu.Unlock()
	defer func() {
		devices.mu.Lock()
		delete(devices.open, "other0")
		devices.mu.Unlock()
	}()
	for device, counted := range map[string]bool{"other0": true, "other0/2": true, "other1/2": false} {
		sums := deviceSums{}
		sums.at(&session{transport: fallback.RDMA, device: device})
		list := sums.list()
		require.Len(t, list, 1)
		require.Equal(t, device, list[0].Device)
		require.Equal(t, counted, list[0].RNRsCounted, device)
	}
}

// Prometheus takes a counter that goes back for one that began anew.
func TestSumsNeverGoBack(t *testing.T) {
	k := overSoft
	k.dedicated = true
	ln := k.listen(t)
	go serveEchoes(ln)
	done := make(chan struct{})
	var dialing sync.WaitGroup
	for range 2 {
		dialing.Go(func() {
			for range times(50, 1000) {
				c, err := k.dialer().Dial("tcp", ln.Addr().String())
				if !assert.NoError(t, err) {
					return
				}
				assert.NoError(t, traffic.RoundTrip(c))
				c.Close()
			}
		})
	}
	go func() {
		dialing.Wait()
		close(done)
	}()
	var last DeviceStats
	for {
		now := sumOf(t, "soft0")
		for _, grew := range [][2]uint64{
			{last.SessionsOpened, now.SessionsOpened}, {last.StreamsOpened, now.StreamsOpened},
			{last.BytesIn, now.BytesIn}, {last.BytesOut, now.BytesOut}, {last.FramesIn, now.FramesIn}, {last.FramesOut, now.FramesOut},
			{last.PollHits, now.PollHits}, {last.PollMisses, now.PollMisses}, {last.Wakeups, now.Wakeups}, {last.Parks, now.Parks},
			{last.ThreadWaits, now.ThreadWaits}, {last.CreditsSent, now.CreditsSent}, {last.WindowsSent, now.WindowsSent},
		} {
			require.LessOrEqual(t, grew[0], grew[1], "from %+v to %+v", last, now)
		}
		last = now
		select {
		case <-done:
			return
		default:
		}
	}
}

// serveEchoes answers on each connection until the listener is closed.
func serveEchoes(ln net.Listener) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		go func() {
			traffic.Behave(c, traffic.Echo)
			c.Close()
		}()
	}
}

func TestListenersTellWhoCame(t *testing.T) {
	ln := carrier{}.listen(t)
	var st ListenerStats
	look := func() ListenerStats {
		for _, l := range ReadStats().Listeners {
			if l.Addr.String() == ln.Addr().String() {
				return l
			}
		}
		return ListenerStats{}
	}
	for range 3 {
		c, err := overSoft.dialer().Dial("tcp", ln.Addr().String())
		require.NoError(t, err)
		defer c.Close()
	}
	c, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	hang.Eventually(t, "all have come", func() bool {
		st = look()
		return st.Waiting == 3
	})
	require.EqualValues(t, 3, st.Streams)
	require.Equal(t, 1, st.Sessions)
	require.Zero(t, st.Denied)
	for range 4 {
		a, err := ln.Accept()
		require.NoError(t, err)
		defer a.Close()
	}
	require.Zero(t, look().Waiting)
	require.EqualValues(t, 1, look().TCP, "which Accept has returned")
	require.NoError(t, ln.Close())
	require.Zero(t, look(), "it is gone")
}

func TestSnapshotSaysThatThereAreMoreStreams(t *testing.T) {
	awaitNoSessions(t)
	ln := overSoft.listen(t)
	for range 5 {
		overSoft.connect(t, ln)
	}
	all := takeSnapshot(10)
	require.Len(t, all.Streams, 10)
	require.False(t, all.Truncated)
	for _, st := range all.Streams {
		require.Contains(t, []uint64{all.Sessions[0].Number, all.Sessions[1].Number}, st.Session)
	}
	some := takeSnapshot(7)
	require.Len(t, some.Streams, 7)
	require.Equal(t, some.Sessions[0].Number, some.Streams[0].Session, "the oldest first")
	require.True(t, some.Truncated)
	require.Empty(t, takeSnapshot(0).Streams)
}
