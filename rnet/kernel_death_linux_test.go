package rnet

import (
	"io"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A process that is killed is noticed by those who wait for it, whichever side
// it was: the kernel ends its connections.
func TestKernelPeerIsKilled(t *testing.T) {
	overKernel(t, func(t *testing.T, k carrier) {
		ln := k.listen(t)
		var delays []time.Duration
		for i := range 6 {
			var b waiters
			var child *roles.Process
			if i%2 == 0 { // it listens
				child = roles.Start(t, "target", k.name)
				address := child.Line(t)
				for _, mode := range []byte(allModes) {
					b.use(t, dialMode(t, k.dialer(), address, mode), mode)
				}
			} else { // it dials
				child = roles.Start(t, "caller", k.name, ln.Addr().String(), allModes)
				for range allModes {
					c := acceptOne(t, ln)
					b.use(t, c, readMode(t, c))
				}
			}
			awaitTraffic(t)
			killed := time.Now()
			child.Kill()
			start(t, b.work.Wait)()
			for _, at := range b.heard {
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
	overKernel(t, func(t *testing.T, k carrier) {
		child := roles.Start(t, "serve", "auto", k.host)
		address := child.Line(t)
		d := &Dialer{Device: k.name, HeadStart: hangTime}
		echo := dialMode(t, d, address, modeEcho)
		require.Equal(t, "rdma "+k.name, carriedBy(echo))
		require.NoError(t, roundTrip(echo))

		require.NoError(t, child.Cmd.Process.Signal(syscall.SIGSTOP))
		data := randomBytes(1, 2<<20) // more than ring and window
		echo.SetWriteDeadline(time.Now().Add(time.Second))
		n, err := echo.Write(data)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.NoError(t, child.Cmd.Process.Signal(syscall.SIGCONT))

		echo.SetDeadline(time.Time{})
		await := start(t, func() {
			_, err := echo.Write(data[n:])
			assert.NoError(t, err)
		})
		got := make([]byte, len(data))
		_, err = io.ReadFull(echo, got)
		require.NoError(t, err)
		require.NoError(t, checkPattern(got, 1, 0))
		await()
		require.Equal(t, "rdma "+k.name, carriedBy(echo))
	})
}

// A dial to a process that is stopped ends over TCP, as far as TCP goes: its
// kernel connects for it. One that may not take TCP ends with the set-up's time.
func TestKernelDialToAStoppedPeerEndsOverTCP(t *testing.T) {
	overKernel(t, func(t *testing.T, k carrier) {
		child := roles.Start(t, "serve", "auto", k.host)
		address := child.Line(t)
		require.NoError(t, child.Cmd.Process.Signal(syscall.SIGSTOP))
		begun := time.Now()
		c := dialMode(t, &Dialer{Device: k.name}, address, modeExchange)
		require.Less(t, time.Since(begun), defaultHeadStart+slowness)
		require.Equal(t, "tcp", carriedBy(c))
		told := Explain(address)
		require.Equal(t, "handshake-timeout", told[len(told)-1].Reason)

		begun = time.Now()
		_, err := (&Dialer{Transport: RDMA, Device: k.name}).Dial("tcp", address)
		require.ErrorContains(t, err, "[handshake-timeout]")
		require.Less(t, time.Since(begun), setUpTime+slowness)
		t.Logf("over the device alone the dial failed after %v: %v", time.Since(begun), err)
		require.NoError(t, child.Cmd.Process.Signal(syscall.SIGCONT))
		require.NoError(t, exchange(c, 1, 10<<10))
	})
}
