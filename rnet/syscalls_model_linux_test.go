package rnet

import (
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
)

func init() { roles.Add("countmessages", countMessages) }

// The round trips whose system calls are counted, in batches: so many in which both ends poll, and so many in which
// one waits. A batch is short, for whoever is kept from a processor for long is right to give it away.
const (
	countedTrips = 4
	busyBatches  = 400
	lateBatches  = 20
)

// countMessages makes round trips between marks. In the first batches both ends are in this process, and poll; in
// the others the answer comes after a pause, from the address of the argument.
func countMessages(args []string) error {
	runtime.GOMAXPROCS(1) // the ends take turns, and the device has the other processor
	host, _, err := net.SplitHostPort(args[0])
	if err != nil {
		return err
	}
	ln, err := (&ListenConfig{Transport: RDMA, Profile: Latency}).Listen(ctxBackground, "tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return err
	}
	defer ln.Close()
	go answerLate(ln, 0) // ends with the listener
	kind := 0
	for i, address := range []string{ln.Addr().String(), args[0]} {
		c, err := (&Dialer{Transport: RDMA, Profile: []Profile{Latency, Balanced}[i]}).Dial("tcp", address)
		if err != nil {
			return err
		}
		b := make([]byte, 64)
		for batch := range 1 + []int{busyBatches, lateBatches}[i] {
			if batch > 0 { // what comes before is not counted
				kind++
				mark(kind)
			}
			for range countedTrips {
				if _, err = c.Write(b); err == nil {
					_, err = io.ReadFull(c, b)
				}
				if err != nil {
					return fmt.Errorf("batch %d: %w", batch, err)
				}
			}
			mark(0)
		}
		c.Close()
	}
	return nil
}

// answerLate answers each message of 64 bytes after a pause.
func answerLate(ln net.Listener, pause time.Duration) {
	for {
		c, err := ln.Accept() // ended by the peer, or Close
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			b := make([]byte, 64)
			for {
				if _, err := io.ReadFull(c, b); err != nil {
					return
				}
				time.Sleep(pause)
				if _, err := c.Write(b); err != nil {
					return
				}
			}
		}()
	}
}

// Over a device whose doorbell is a store, ends that poll make no system call, and one that sleeps a few for
// each message.
func TestMessagesCostNoSystemCallsWhileBothEndsPoll(t *testing.T) {
	const device = "mlx5_0" // the doorbells of rxe and siw are system calls
	i := slices.IndexFunc(kernelCarriers(), func(k carrier) bool { return k.name == device })
	if i < 0 {
		t.Skip("there is no " + device)
	}
	var cpus unix.CPUSet
	require.NoError(t, unix.SchedGetaffinity(0, &cpus))
	if cpus.Count() < 2 {
		t.Skip("who polls and the model need a processor each")
	}
	k := kernelCarriers()[i]
	ln, err := (&ListenConfig{Transport: RDMA}).Listen(ctxBackground, "tcp", k.anyPort())
	require.NoError(t, err)
	defer ln.Close()
	go answerLate(ln, 2*time.Millisecond) // ends with the listener
	const tries = 20                      // on a machine that is busy the model may not answer in time, and who polls yields or sleeps
	none := 0
	for try := 0; none == 0 && try < tries; try++ {
		done := make(chan []int)
		go func() {
			done <- traceMarked(t, roles.Command(t, "countmessages", ln.Addr().String()), 1+busyBatches+lateBatches, ofData)
		}()
		counts := <-done
		if counts == nil {
			return
		}
		busy, late := counts[1:][:busyBatches], counts[1+busyBatches:]
		slices.Sort(busy)
		slices.Sort(late)
		median := float64(late[lateBatches/2]) / countedTrips
		none, _ = slices.BinarySearch(busy, 1)
		t.Logf("both ends poll: no system call in %d of %d batches of %d round trips; one waits: %.1f for each round trip, of its own",
			none, busyBatches, countedTrips, median)
		require.Less(t, late[0], 10*countedTrips)
	}
	require.NotZero(t, none)
}

// ofData leaves out what Go's monitor thread does, and collections of garbage.
func ofData(nr uint64) bool {
	switch nr {
	case unix.SYS_NANOSLEEP, unix.SYS_TGKILL, unix.SYS_RT_SIGRETURN, unix.SYS_MADVISE, unix.SYS_GETPID:
		return false
	}
	return true
}
