package kerneltest

import (
	"context"
	"net"
	"testing"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
	"github.com/seed-b9b531af/ramjet/rnet/internal/traffic"
	"github.com/stretchr/testify/require"
)

// portOf returns the address of ln at a host.
func portOf(t testing.TB, ln net.Listener, host string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(ln.Addr().String())
	require.NoError(t, err)
	return net.JoinHostPort(host, port)
}

// A listener restricted to one device serves its peers over that one, and
// those of the others over TCP.
func TestKernelListenerUsesTheDeviceChosen(t *testing.T) {
	devices := needsGuest(t)
	leavesDevicesAlone(t)
	for _, k := range devices {
		t.Run(k.name, func(t *testing.T) {
			ln, err := (&rnet.ListenConfig{Device: k.name}).Listen(context.Background(), "tcp", ":0")
			require.NoError(t, err)
			defer ln.Close()
			go traffic.Serve(ln)
			for _, by := range devices {
				address := portOf(t, ln, by.host)
				want := "tcp"
				if by.name == k.name {
					want = "rdma " + k.name
				}
				exchangeOver(t, &rnet.Dialer{Device: by.name, HeadStart: hang.Time}, address, want)
			}
			exchangeOver(t, &rnet.Dialer{HeadStart: hang.Time}, portOf(t, ln, "127.0.0.1"), "tcp")
		})
	}
}

// A dial restricted to one device takes no other, not even one that would be
// faster.
func TestKernelDialUsesTheDeviceChosen(t *testing.T) {
	devices := needsGuest(t)
	leavesDevicesAlone(t)
	// A device and its one port have sessions of their own, more than the
	// guest's RLIMIT_MEMLOCK has room for at the usual size.
	limits := rnet.Limits{RingSize: 64 << 10}
	ln, err := (&rnet.ListenConfig{Limits: limits}).Listen(context.Background(), "tcp", ":0")
	require.NoError(t, err)
	defer ln.Close()
	go traffic.Serve(ln)
	for _, k := range devices {
		address := portOf(t, ln, k.host)
		// the peer is of this host
		exchangeOver(t, &rnet.Dialer{HeadStart: hang.Time, Limits: limits}, address, "soft soft0")
		exchangeOver(t, &rnet.Dialer{Device: k.name, HeadStart: hang.Time, Limits: limits}, address, "rdma "+k.name)
		exchangeOver(t, &rnet.Dialer{Device: k.name + "/1", HeadStart: hang.Time, Limits: limits}, address, "rdma "+k.name)
		_, err := (&rnet.Dialer{Transport: rnet.RDMA, Device: k.name + "/2"}).Dial("tcp", address)
		require.ErrorContains(t, err, "device "+k.name+" has no port 2")
		exchangeOver(t, &rnet.Dialer{Device: "soft0", HeadStart: hang.Time, Limits: limits}, address, "soft soft0")
	}
}

// RNET_DEVICE is for programs that cannot be changed.
func TestKernelDeviceOfTheEnvironment(t *testing.T) {
	devices := needsGuest(t)
	leavesDevicesAlone(t)
	ln, err := rnet.Listen("tcp", ":0")
	require.NoError(t, err)
	defer ln.Close()
	go traffic.ServeExchanges(ln, func(_ net.Conn, err error) { t.Error(err) })
	for _, k := range devices {
		for _, device := range []string{k.name, k.name + "/1"} {
			child := roles.StartAs(t, alsoEnv("RNET_DEVICE="+device), "exchange", portOf(t, ln, k.host), "rnet", "1000")
			require.Equal(t, "rdma "+k.name, child.Line(t))
		}
	}
}

// A device that is not there is an error where RDMA is demanded, and a reason
// where it is not; both say which there are.
func TestKernelDeviceThatDoesNotExist(t *testing.T) {
	overKernel(t, func(t *testing.T, k device) {
		address := k.serving(t)
		_, err := (&rnet.Dialer{Transport: rnet.RDMA, Device: "rxe9"}).Dial("tcp", address)
		var op *net.OpError
		require.ErrorAs(t, err, &op)
		require.ErrorContains(t, err, "no device rxe9, there are [")
		require.ErrorContains(t, err, k.name)
		require.ErrorContains(t, err, "no-device")

		exchangeOver(t, &rnet.Dialer{Device: "rxe9"}, address, "tcp")
		told := rnet.Explain(address)
		last := told[len(told)-1]
		require.Equal(t, "no-device", last.Reason)
		require.ErrorContains(t, last.Err, "no device rxe9, there are [")

		_, err = (&rnet.ListenConfig{Transport: rnet.RDMA, Device: "rxe9"}).Listen(context.Background(), "tcp", k.anyPort())
		require.ErrorContains(t, err, "no device rxe9, there are [")

		ln, err := (&rnet.ListenConfig{Device: "rxe9"}).Listen(context.Background(), "tcp", k.anyPort())
		require.NoError(t, err)
		defer ln.Close()
		go traffic.Serve(ln)
		exchangeOver(t, &rnet.Dialer{Device: k.name}, ln.Addr().String(), "tcp")
	})
}
