package rnet

import (
	"errors"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/rcm/kernelcm"
	"github.com/seed-b9b531af/ramjet/rcm/softcm"
)

// goroutineStacks returns the stacks of all goroutines in which this module's code is,
// but for those of tests.
func goroutineStacks() (stacks []string) {
	buf := make([]byte, 4<<20)
	for _, stack := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(stack, "seed-b9b531af/ramjet/") && !strings.Contains(stack, "_test.go") {
			stacks = append(stacks, stack)
		}
	}
	return stacks
}

// fabricsToo are the software HCA's fabric and the kernel's at other ports: other kinds
// of devices, for all that a listener knows.
func fabricsToo(shift uint16) []fabric {
	other := func(port uint16) uint16 { return port ^ shift }
	return []fabric{
		{fallback.Soft, softcm.New(softcm.Config{}), other},
		{fallback.RDMA, kernelcm.New(kernelcm.Config{Transports: ownPorts}), other},
	}
}

// Listeners that serve nobody have one goroutine together, with devices of the kernel
// two, for any number of them and of fabrics, and none after the last is closed.
func TestIdleListenersShareTheirGoroutines(t *testing.T) {
	want := []string{"samehost.(*watcher).run"}
	if kernelCarriers() != nil {
		want = append(want, "kernelcm.(*ucmFile).read")
	}
	hang.Eventually(t, "what other tests have left ends", func() bool { return len(goroutineStacks()) == 0 })
	all := fabrics
	defer func() { fabrics = all }()
	var listeners []net.Listener
	for _, few := range [][]fabric{all, slices.Concat(fabricsToo(1), fabricsToo(2), all), append(fabricsToo(4), all...)} {
		fabrics = few
		for _, address := range []string{"127.0.0.1:0", ":0"} {
			ln, err := Listen("tcp", address)
			require.NoError(t, err)
			defer ln.Close() // if the test fails
			listeners = append(listeners, ln)
		}
	}
	hang.Eventually(t, "the goroutines are those of the process, and have begun", func() bool {
		stacks := goroutineStacks()
		all := strings.Join(stacks, "\n\n")
		return len(stacks) == len(want) && !slices.ContainsFunc(want, func(f string) bool { return !strings.Contains(all, f) })
	})
	// Those who accept are the caller's own.
	c, err := Dial("tcp", listeners[0].Addr().String())
	require.NoError(t, err)
	s, err := listeners[0].Accept()
	require.NoError(t, err)
	c.Close()
	s.Close()
	for _, ln := range listeners {
		require.NoError(t, ln.Close())
	}
	hang.Eventually(t, "no goroutine", func() bool { return len(goroutineStacks()) == 0 })
}

// Streams, TCP peers, deadlines and Close find whoever accepts, however many do.
func TestAcceptIsFoundByWhateverComes(t *testing.T) {
	ln := carrier{}.listen(t).(*Listener)
	address := ln.Addr().String()
	const accepters, each = 3, 50
	var mu sync.Mutex
	streams, overTCP := 0, 0
	var work sync.WaitGroup
	for range accepters {
		work.Go(func() {
			for {
				c, err := ln.Accept() // ended by a peer, Close
				if errors.Is(err, net.ErrClosed) {
					return
				}
				if errors.Is(err, os.ErrDeadlineExceeded) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if _, ok := c.(*Conn); ok {
					streams++
				} else {
					overTCP++
				}
				mu.Unlock()
				c.Close()
			}
		})
	}
	var dials sync.WaitGroup
	dials.Go(func() {
		for range each {
			c, err := Dial("tcp", address)
			if err != nil {
				t.Error(err)
				return
			}
			c.Read(make([]byte, 1)) // ended by the Close of the other end
			c.Close()
		}
	})
	dials.Go(func() {
		for range each {
			c, err := net.Dial("tcp", address)
			if err != nil {
				t.Error(err)
				return
			}
			c.Read(make([]byte, 1)) // the same
			c.Close()
		}
	})
	dials.Go(func() {
		for range each {
			ln.SetDeadline(time.Now())
			ln.SetDeadline(time.Time{})
		}
	})
	dials.Wait()
	require.NoError(t, ln.Close())
	work.Wait()
	require.Equal(t, 2*each, streams+overTCP)
	require.GreaterOrEqual(t, overTCP, each)
	require.NotZero(t, streams)
}
