package rnet

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func init() { roles.Add("serve", serveAll) }

const modeExchange = 'x' // beside the modes of behave

// serveAll listens on any port of a host, over the transport named, says
// where, and does with each connection what its first byte says.
func serveAll(args []string) error {
	ln, err := (&ListenConfig{Transport: Transport(args[0])}).Listen(ctxBackground, "tcp", net.JoinHostPort(args[1], "0"))
	if err != nil {
		return err
	}
	fmt.Println(ln.Addr())
	return serveEach(ln)
}

// serveEach is serveModes with exchanges.
func serveEach(ln net.Listener) error {
	for {
		c, err := ln.Accept() // ended by a peer, or Close
		if err != nil {
			return err
		}
		go func() {
			var mode [1]byte
			if _, err := io.ReadFull(c, mode[:]); err != nil || mode[0] == modeSilent {
				return
			}
			defer c.Close()
			if mode[0] != modeExchange {
				behave(c, mode[0])
				return
			}
			for answerExchange(c) == nil {
			}
		}()
	}
}

// dialMode dials and says what the other side is to do.
func dialMode(t testing.TB, d *Dialer, address string, mode byte) net.Conn {
	t.Helper()
	c, err := d.Dial("tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	_, err = c.Write([]byte{mode})
	require.NoError(t, err)
	return c
}

// exchangeOver dials and requires an exchange to go well, over the transport
// that want names as carriedBy does.
func exchangeOver(t testing.TB, d *Dialer, address, want string) {
	t.Helper()
	c := dialMode(t, d, address, modeExchange)
	require.Equal(t, want, carriedBy(c), "dials to %s so far: %v", address, Explain(address))
	require.NoError(t, exchange(c, 1, 50<<10))
	require.NoError(t, c.Close())
}

// linkOf are the interface that a device is on, and its type, for "rdma link
// add".
var linkOf = map[string]struct{ netdev, driver string }{
	"rxe0": {"dummy0", "rxe"},
	"siw0": {"dummy2", "siw"},
}

func (k carrier) removeDevice(t testing.TB) { run(t, "rdma", "link", "delete", k.name) }

func (k carrier) addDevice(t testing.TB) {
	link := linkOf[k.name]
	run(t, "rdma", "link", "add", k.name, "type", link.driver, "netdev", link.netdev)
}

// A device that is removed in the middle of traffic takes its connections
// with it, and nothing else: the program goes on over TCP, and uses the device
// again when it is back.
func TestKernelDeviceIsRemovedAndComesBack(t *testing.T) {
	overKernel(t, func(t *testing.T, k carrier) {
		child := roles.Start(t, "serve", "auto", k.host)
		ours, err := Listen("tcp", k.anyPort())
		require.NoError(t, err)
		defer ours.Close()
		go serveEach(ours)
		d := &Dialer{Device: k.name, HeadStart: hangTime}
		addresses := []string{child.Line(t), ours.Addr().String()}
		for range 2 {
			var b waiters
			for _, address := range addresses {
				for _, mode := range []byte(allModes) {
					c := dialMode(t, d, address, mode)
					require.Equal(t, "rdma "+k.name, carriedBy(c))
					b.use(t, c, mode)
				}
			}
			awaitTraffic(t)
			removed := time.Now()
			start(t, func() { k.removeDevice(t) })()
			took := time.Since(removed)
			start(t, b.work.Wait)()
			last := slices.MaxFunc(b.heard, time.Time.Compare).Sub(removed)
			t.Logf("removed in %v, noticed after %v to %v", took, slices.MinFunc(b.heard, time.Time.Compare).Sub(removed), last)
			require.Less(t, last, took+atOnce)
			for _, address := range addresses {
				exchangeOver(t, d, address, "tcp")
				told := Explain(address)
				last := told[len(told)-1]
				require.Equal(t, "no-device", last.Reason)
				require.ErrorContains(t, last.Err, k.name)
			}
			k.addDevice(t)
			back := time.Now()
			for _, address := range addresses {
				awaitDevice(t, d, address)
				require.Less(t, time.Since(back), time.Second+slowness) // listeners look each second
				exchangeOver(t, d, address, "rdma "+k.name)
			}
		}
	})
}

// awaitTraffic waits until each session has carried some data.
func awaitTraffic(t testing.TB) {
	t.Helper()
	eventually(t, "traffic", func() bool {
		for _, s := range ReadStats().Sessions {
			if s.BytesIn+s.BytesOut < 1<<20 {
				return false
			}
		}
		return true
	})
}

// awaitDevice waits until dials to address are accelerated.
func awaitDevice(t testing.TB, d *Dialer, address string) {
	t.Helper()
	eventually(t, "a dial finds the device", func() bool {
		c, err := d.Dial("tcp", address)
		require.NoError(t, err)
		defer c.Close()
		_, fast := c.(*Conn)
		return fast
	})
}

// Whatever a dial is doing when the device goes or comes, it ends in a
// connection.
func TestKernelDialsSurviveRemoval(t *testing.T) {
	overKernel(t, func(t *testing.T, k carrier) {
		child := roles.Start(t, "serve", "auto", k.host)
		address := child.Line(t)
		d := &Dialer{Device: k.name, HeadStart: hangTime, Dedicated: true}
		var over atomic.Bool
		var fast, plain, lost atomic.Int64
		var work sync.WaitGroup
		for range 4 {
			work.Go(func() {
				for !over.Load() {
					c, err := d.Dial("tcp", address)
					if !assert.NoError(t, err) {
						return
					}
					_, err = c.Write([]byte{modeExchange})
					if err == nil {
						err = exchange(c, 1, 1<<10)
					}
					c.Close()
					_, accelerated := c.(*Conn)
					switch {
					case accelerated && errors.Is(err, syscall.ECONNRESET):
						lost.Add(1) // with the device
					case !assert.NoError(t, err):
						return
					case accelerated:
						fast.Add(1)
					default:
						plain.Add(1)
					}
				}
			})
		}
		for range 3 {
			was := fast.Load()
			eventually(t, "the device is in use", func() bool {
				k.forgetFailure(address) // what has failed is not tried again for a while
				return fast.Load() > was+4
			})
			start(t, func() { k.removeDevice(t) })()
			was = plain.Load()
			eventually(t, "TCP is in use", func() bool { return plain.Load() > was+4 })
			k.addDevice(t)
		}
		over.Store(true)
		start(t, work.Wait)()
		t.Logf("%d exchanges over the device, %d over TCP, %d lost with the device", fast.Load(), plain.Load(), lost.Load())
	})
}
