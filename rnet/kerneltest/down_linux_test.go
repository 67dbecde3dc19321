package kerneltest

import (
	"syscall"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
	"github.com/seed-b9b531af/ramjet/rnet/internal/traffic"
	"github.com/stretchr/testify/require"
)

// setInterface takes the interface of the device up or down. After
// the test it is up. Its address of IPv6, which it loses when it goes down, it
// gets back.
func (k device) setInterface(t testing.TB, state string) {
	t.Helper()
	run(t, "ip", "link", "set", linkOf[k.name].netdev, state)
	if state == "down" {
		t.Cleanup(func() { k.setInterface(t, "up") })
		return
	}
	run(t, "ip", "-6", "addr", "replace", kernelHosts6[k.name]+"/64", "dev", linkOf[k.name].netdev, "nodad")
}

// goesOn reports whether data goes through all sessions, and did so for a
// while.
func goesOn(t testing.TB) bool {
	t.Helper()
	for range 10 {
		before := rnet.ReadStats().Sessions
		time.Sleep(200 * time.Millisecond)
		now := rnet.ReadStats().Sessions
		if len(now) != len(before) || len(now) == 0 {
			return false
		}
		for i := range now {
			if now[i].BytesIn+now[i].BytesOut == before[i].BytesIn+before[i].BytesOut {
				return false
			}
		}
	}
	return true
}

// A connection that has nothing to send while its interface is down may
// survive that: over rxe it does, and over siw of later kernels; that of 6.1
// ends it at once.
func TestKernelIdleConnectionWhileItsInterfaceIsDown(t *testing.T) {
	overKernel(t, func(t *testing.T, k device) {
		child := roles.Start(t, "serve", "auto", k.host)
		address := child.Line(t)
		d := &rnet.Dialer{Device: k.name, HeadStart: hang.Time}
		c := dialMode(t, d, address, traffic.Exchanging)
		require.Equal(t, "rdma "+k.name, carriedBy(c))
		require.NoError(t, traffic.Exchange(c, 1, 50<<10))

		k.setInterface(t, "down")
		time.Sleep(time.Second) // somebody has pulled the cable and puts it back
		k.setInterface(t, "up")
		err := traffic.Exchange(c, 1, 50<<10)
		if k.name == "siw0" && onKernel(t, "6.1") {
			require.ErrorIs(t, err, syscall.ECONNRESET)
		} else {
			require.NoError(t, err)
		}
		c.Close()
		exchangeOver(t, d, address, "rdma "+k.name)
	})
}

// What is under way while the interface is down is lost, and with it the
// connection; dials go over TCP until it is up. siw of later kernels (6.12) may
// not mind: the packets between two processes of this host do not go through
// the interface.
func TestKernelBusyConnectionsWhileTheirInterfaceIsDown(t *testing.T) {
	overKernel(t, func(t *testing.T, k device) {
		child := roles.Start(t, "serve", "auto", k.host)
		address := child.Line(t)
		d := &rnet.Dialer{Device: k.name, HeadStart: hang.Time}
		var b traffic.Waiters
		for _, mode := range []byte{traffic.Sink, traffic.Echo, traffic.Source} {
			c := dialMode(t, d, address, mode)
			require.Equal(t, "rdma "+k.name, carriedBy(c))
			b.Use(t, c, mode)
		}
		awaitTraffic(t, 0)
		begun := time.Now()
		k.setInterface(t, "down")
		// Mostly at once; if all that was to be sent waited for the peer, which
		// was the first to fail and could not say so, by the ping.
		if k.name == "siw0" && !onKernel(t, "6.1") && goesOn(t) {
			t.Log("the connections live on")
			begun = time.Now()
			child.Kill()
			child = roles.Start(t, "serve", "auto", k.host)
			address = child.Line(t)
		}
		awaitLoss(t, &b, begun)
		exchangeOver(t, d, address, "tcp")
		told := rnet.Explain(address)
		last := told[len(told)-1]
		require.Equal(t, "no-device", last.Reason)
		require.ErrorContains(t, last.Err, "port 1 of "+k.name+" is DOWN")

		k.setInterface(t, "up")
		if k.name == "rxe0" {
			// The kernel's connection manager may not send any more on a
			// rxe device whose interface was down when it tried to (6.1 and
			// 6.12; C programs suffer too): dials go over TCP until somebody
			// makes the device anew.
			c := dialMode(t, &rnet.Dialer{Device: k.name}, address, traffic.Exchanging)
			require.NoError(t, traffic.Exchange(c, 1, 50<<10))
			require.NoError(t, c.Close())
			k.removeDevice(t)
			k.addDevice(t)
			k.forgetFailure(t, address)
		}
		awaitDevice(t, d, address)
		exchangeOver(t, d, address, "rdma "+k.name)
	})
}
