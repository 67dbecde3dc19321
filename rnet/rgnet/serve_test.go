package rgnet

import (
	"cmp"
	"context"
	"errors"
	"net"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/panjf2000/gnet/v2"
	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/freeport"
	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/internal/testhost"
	"github.com/seed-b9b531af/ramjet/rnet"
)

// carrier is one way in which peers reach a handler. Most tests run over each.
type carrier struct {
	name string
	cfg  Config
	host string // an address of this host, empty for 127.0.0.1
}

var overTCP = carrier{name: "tcp", cfg: Config{Transport: rnet.TCP}}

// streamCarriers are those on which connections are streams: of the software
// HCA, or in the virtual machine, of its devices.
var streamCarriers = kernelOr(
	carrier{name: "soft", cfg: Config{Transport: rnet.Soft}},
	carrier{name: "soft-narrow", cfg: Config{Transport: rnet.Soft, Limits: rnet.Limits{RingSize: 64 << 10, Window: 4 << 10}}},
	carrier{name: "soft-efficient", cfg: Config{Transport: rnet.Soft, Profile: rnet.Efficient}},
)

func kernelOr(list ...carrier) []carrier {
	var kernel []carrier
	for _, d := range testhost.Devices() {
		kernel = append(kernel, carrier{d.Name, Config{Transport: rnet.RDMA, Device: d.Name}, d.Host})
	}
	if kernel != nil {
		return kernel
	}
	return list
}

// freeAddress returns an address at which nobody listens.
func (k carrier) freeAddress(t testing.TB) string {
	t.Helper()
	address, err := freeport.Address(cmp.Or(k.host, "127.0.0.1"))
	require.NoError(t, err)
	return address
}

// over runs f as a subtest for each carrier; in the virtual machine not for TCP, which is as it is outside.
func over(t *testing.T, f func(t *testing.T, k carrier)) {
	carriers := streamCarriers
	if testhost.Devices() == nil {
		carriers = append([]carrier{overTCP}, carriers...)
	}
	for _, k := range carriers {
		t.Run(k.name, func(t *testing.T) {
			k.need(t)
			f(t, k)
		})
	}
}

// need skips a test where the carrier cannot be.
func (k carrier) need(t testing.TB) {
	t.Helper()
	if k.cfg.Transport == rnet.Soft && runtime.GOOS != "linux" {
		t.Skip("the software HCA needs Linux")
	}
}

func (k carrier) dialer() *rnet.Dialer { return k.cfg.dialer() }

func dialUnix(t testing.TB, path string) net.Conn {
	t.Helper()
	c, err := net.Dial("unix", path)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func (k carrier) dial(t testing.TB, address string) net.Conn {
	t.Helper()
	c, err := k.dialer().Dial("tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// served is a handler that is being served.
type served struct {
	address string
	engine  gnet.Engine
	ended   chan error // gets what Run returns
}

// serve runs handler at a free port of the loopback address until the test
// ends.
func (k carrier) serve(t testing.TB, handler gnet.EventHandler, opts ...gnet.Option) *served {
	t.Helper()
	for {
		s, err := k.tryServe(t, handler, k.freeAddress(t), opts...)
		if !errors.Is(err, syscall.EADDRINUSE) { // another process was quicker
			require.NoError(t, err)
			return s
		}
	}
}

func (k carrier) serveAt(t testing.TB, handler gnet.EventHandler, address string, opts ...gnet.Option) *served {
	t.Helper()
	s, err := k.tryServe(t, handler, address, opts...)
	require.NoError(t, err)
	return s
}

func (k carrier) tryServe(t testing.TB, handler gnet.EventHandler, address string, opts ...gnet.Option) (*served, error) {
	t.Helper()
	k.need(t)
	s := &served{address: address, ended: make(chan error, 1)}
	h := check(t, handler)
	opts = append([]gnet.Option{gnet.WithLogger(quiet{})}, opts...)
	go func() { s.ended <- k.cfg.Run(h, "tcp://"+s.address, opts...) }() // ended by stop
	// ended by the engine, or the clock
	select {
	case <-h.booted:
	case err := <-s.ended:
		return nil, err
	case <-time.After(hang.Time):
		t.Fatal("no engine boots")
	}
	t.Cleanup(func() { s.stop(t) })
	s.engine = h.engine
	k.awaitListener(t, s.address)
	hang.Eventually(t, "the first connection is done with", h.idle)
	return s, nil
}

// awaitListener waits until the carrier's peers are served at the address. That
// costs a connection, on which nothing is sent.
func (k carrier) awaitListener(t testing.TB, address string) {
	t.Helper()
	if k.cfg.Transport == rnet.Auto { // a dial would take TCP, and remember that for a while
		k = streamCarriers[0]
	}
	hang.Eventually(t, "peers are served", func() bool {
		c, err := k.dialer().Dial("tcp", address)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

// stop ends the engine, unless it has ended, and waits for Run to return.
func (s *served) stop(t testing.TB) {
	t.Helper()
	if s.ended == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go s.engine.Stop(ctx) // looks twice a second whether the engine has ended; ended by cancel
	s.await(t)
}

// await waits for Run to return.
func (s *served) await(t testing.TB) {
	t.Helper()
	select { // ended by the engine, or the clock
	case err := <-s.ended:
		s.ended = nil
		require.NoError(t, err)
	case <-time.After(hang.Time):
		t.Fatal("Run does not return")
	}
}

// finish waits for a group, in time.
func finish(t testing.TB, work *sync.WaitGroup) {
	t.Helper()
	finished := make(chan struct{})
	go func() {
		work.Wait()
		close(finished)
	}()
	select {
	case <-finished:
	case <-time.After(3 * hang.Time):
		// the work itself takes half of that in an emulated machine, over TCP too
		t.Fatal("not in time: all have finished")
	}
}

// quiet is a logger that says nothing.
type quiet struct{}

func (quiet) Debugf(string, ...any) {}
func (quiet) Infof(string, ...any)  {}
func (quiet) Warnf(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}
func (quiet) Fatalf(string, ...any) {}
