package kerneltest

import (
	"io"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
	"github.com/seed-b9b531af/ramjet/rnet/internal/traffic"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A process that is killed is noticed by those who wait for it, whichever side
// it was: the kernel ends its connections.
func TestKernelPeerIsKilled(t *testing.T) {
	overKernel(t, func(t *testing.T, k device) {
		ln := k.listen(t)
		var delays []time.Duration
		for i := range 6 {
			var b traffic.Waiters
			var child *roles.Process
			if i%2 == 0 { // it listens
				child = roles.Start(t, "serve", "rdma", k.host)
				address := child.Line(t)
				for _, mode := range []byte(traffic.AllModes) {
					b.Use(t, dialMode(t, k.dialer(), address, mode), mode)
				}
			} else { // it dials
				child = roles.Start(t, "call", k.name, ln.Addr().String(), traffic.AllModes)
				for range traffic.AllModes {
					c := acceptOne(t, ln)
					b.Use(t, c, traffic.ReadMode(t, c))
				}
			}
			awaitTraffic(t, 0)
			killed := time.Now()
			child.Kill()
			hang.Start(t, b.Wait)()
			for _, at := range b.Told() {
				delays = append(delays, at.Sub(killed))
			}
			child.Stop()
			if t.Failed() {
				return
			}
		}
		t.Logf("noticed after %v to %v", slices.Min(delays), slices.Max(delays))
		require.Less(t, slices.Max(delays), atOnce)
		k.connect(t, ln) // the listener has survived all of them
	})
}

// A process that is stopped (a debugger, a full machine) is not dead: its
// kernel answers for it, so it is waited for as long as it takes.
func TestKernelPeerIsStopped(t *testing.T) {
	overKernel(t, func(t *testing.T, k device) {
		child := roles.Start(t, "serve", "auto", k.host)
		address := child.Line(t)
		d := &rnet.Dialer{Device: k.name, HeadStart: hang.Time}
		echo := dialMode(t, d, address, traffic.Echo)
		require.Equal(t, "rdma "+k.name, carriedBy(echo))
		require.NoError(t, traffic.RoundTrip(echo))

		require.NoError(t, child.Cmd.Process.Signal(syscall.SIGSTOP))
		data := traffic.Bytes(1, 2<<20) // more than ring and window
		echo.SetWriteDeadline(time.Now().Add(time.Second))
		n, err := echo.Write(data)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.NoError(t, child.Cmd.Process.Signal(syscall.SIGCONT))

		echo.SetDeadline(time.Time{})
		await := hang.Start(t, func() {
			_, err := echo.Write(data[n:])
			assert.NoError(t, err)
		})
		got := make([]byte, len(data))
		_, err = io.ReadFull(echo, got)
		require.NoError(t, err)
		require.NoError(t, traffic.Check(got, 1, 0))
		await()
		require.Equal(t, "rdma "+k.name, carriedBy(echo))
	})
}

// A dial to a process that is stopped ends over TCP, as far as TCP goes: its
// kernel connects for it. One that may not take TCP ends with the set-up's time.
func TestKernelDialToAStoppedPeerEndsOverTCP(t *testing.T) {
	overKernel(t, func(t *testing.T, k device) {
		child := roles.Start(t, "serve", "auto", k.host)
		address := child.Line(t)
		require.NoError(t, child.Cmd.Process.Signal(syscall.SIGSTOP))
		require.NoError(t, unix.Waitid(unix.P_PID, child.Cmd.Process.Pid, nil, unix.WSTOPPED, nil)) // until then it may serve
		begun := time.Now()
		c := dialMode(t, &rnet.Dialer{Device: k.name}, address, traffic.Exchanging)
		require.Less(t, time.Since(begun), headStart+slowness)
		require.Equal(t, "tcp", carriedBy(c))
		told := rnet.Explain(address)
		require.Equal(t, "handshake-timeout", told[len(told)-1].Reason)

		begun = time.Now()
		_, err := (&rnet.Dialer{Transport: rnet.RDMA, Device: k.name}).Dial("tcp", address)
		require.ErrorContains(t, err, "[handshake-timeout]")
		require.Less(t, time.Since(begun), setUpTime+slowness)
		t.Logf("over the device alone the dial failed after %v: %v", time.Since(begun), err)
		require.NoError(t, child.Cmd.Process.Signal(syscall.SIGCONT))
		require.NoError(t, traffic.Exchange(c, 1, 10<<10))
	})
}
