package kerneltest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
	"github.com/seed-b9b531af/ramjet/rnet/internal/traffic"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func init() { roles.Add("serve", serveAll) }

// serveAll listens on any port of a host, over the transport named, says
// where, and does with each connection what its first byte says.
func serveAll(args []string) error {
	ln, err := (&rnet.ListenConfig{Transport: rnet.Transport(args[0])}).Listen(context.Background(), "tcp", net.JoinHostPort(args[1], "0"))
	if err != nil {
		return err
	}
	fmt.Println(ln.Addr())
	return traffic.Serve(ln)
}

// dialMode dials and says what the other side is to do.
func dialMode(t testing.TB, d *rnet.Dialer, address string, mode byte) net.Conn {
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
func exchangeOver(t testing.TB, d *rnet.Dialer, address, want string) {
	t.Helper()
	c := dialMode(t, d, address, traffic.Exchanging)
	require.Equal(t, want, carriedBy(c), "dials to %s so far: %v", address, rnet.Explain(address))
	require.NoError(t, traffic.Exchange(c, 1, 50<<10))
	require.NoError(t, c.Close())
}

// linkOf are the interface that a device is on, and its type, for "rdma link
// add".
var linkOf = map[string]struct{ netdev, driver string }{
	"rxe0": {"dummy0", "rxe"},
	"siw0": {"dummy2", "siw"},
}

func (k device) removeDevice(t testing.TB) { run(t, "rdma", "link", "delete", k.name) }

func (k device) addDevice(t testing.TB) {
	link := linkOf[k.name]
	run(t, "rdma", "link", "add", k.name, "type", link.driver, "netdev", link.netdev)
}

// A device that is removed in the middle of traffic takes its connections
// with it, and nothing else: the program goes on over TCP, and uses the device
// again when it is back.
func TestKernelDeviceIsRemovedAndComesBack(t *testing.T) {
	overKernel(t, func(t *testing.T, k device) {
		child := roles.Start(t, "serve", "auto", k.host)
		ours, err := rnet.Listen("tcp", k.anyPort())
		require.NoError(t, err)
		defer ours.Close()
		go traffic.Serve(ours)
		d := &rnet.Dialer{Device: k.name, HeadStart: hang.Time}
		addresses := []string{child.Line(t), ours.Addr().String()}
		for range 2 {
			var b traffic.Waiters
			for _, address := range addresses {
				for _, mode := range []byte(traffic.AllModes) {
					c := dialMode(t, d, address, mode)
					require.Equal(t, "rdma "+k.name, carriedBy(c))
					b.Use(t, c, mode)
				}
			}
			awaitTraffic(t, 0)
			removed := time.Now()
			hang.Start(t, func() { k.removeDevice(t) })()
			took := time.Since(removed)
			hang.Start(t, b.Wait)()
			last := slices.MaxFunc(b.Told(), time.Time.Compare).Sub(removed)
			t.Logf("removed in %v, noticed after %v to %v", took, slices.MinFunc(b.Told(), time.Time.Compare).Sub(removed), last)
			require.Less(t, last, took+atOnce)
			for _, address := range addresses {
				exchangeOver(t, d, address, "tcp")
				told := rnet.Explain(address)
				last := told[len(told)-1]
				require.Equal(t, "no-device", last.Reason)
				require.ErrorContains(t, last.Err, k.name)
			}
			k.addDevice(t)
			back := time.Now()
			for _, address := range addresses {
				awaitDevice(t, d, address)
				// listeners look each second
				require.Less(t, time.Since(back), time.Second+slowness)
				exchangeOver(t, d, address, "rdma "+k.name)
			}
		}
	})
}

// awaitTraffic waits until each session, but so many that are stuck, has carried some data.
func awaitTraffic(t testing.TB, stuck int) {
	t.Helper()
	hang.Eventually(t, "traffic", func() bool {
		waiting := 0
		for _, s := range rnet.ReadStats().Sessions {
			if s.BytesIn+s.BytesOut < 1<<20 {
				waiting++
			}
		}
		return waiting <= stuck
	})
}

// awaitDevice waits until dials to address are accelerated.
func awaitDevice(t testing.TB, d *rnet.Dialer, address string) {
	t.Helper()
	hang.Eventually(t, "a dial finds the device", func() bool {
		c, err := d.Dial("tcp", address)
		require.NoError(t, err)
		defer c.Close()
		_, fast := c.(*rnet.Conn)
		return fast
	})
}

// Whatever a dial is doing when the device goes or comes, it ends in a
// connection.
func TestKernelDialsSurviveRemoval(t *testing.T) {
	overKernel(t, func(t *testing.T, k device) {
		child := roles.Start(t, "serve", "auto", k.host)
		address := child.Line(t)
		defer func() {
			if t.Failed() {
				t.Logf("dials so far: %v", rnet.Explain(address))
			}
		}()
		d := &rnet.Dialer{Device: k.name, HeadStart: hang.Time, Dedicated: true}
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
					_, err = c.Write([]byte{traffic.Exchanging})
					if err == nil {
						err = traffic.Exchange(c, 1, 1<<10)
					}
					c.Close()
					_, accelerated := c.(*rnet.Conn)
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
			hang.Eventually(t, "the device is in use", func() bool {
				k.forgetFailure(t, address) // what has failed is not tried again for a while
				return fast.Load() > was+4
			})
			hang.Start(t, func() { k.removeDevice(t) })()
			was = plain.Load()
			hang.Eventually(t, "TCP is in use", func() bool { return plain.Load() > was+4 })
			k.addDevice(t)
		}
		over.Store(true)
		hang.Start(t, work.Wait)()
		t.Logf("%d exchanges over the device, %d over TCP, %d lost with the device", fast.Load(), plain.Load(), lost.Load())
	})
}
