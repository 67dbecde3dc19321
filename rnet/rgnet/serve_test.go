package rgnet

import (
	"context"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/panjf2000/gnet/v2"
	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/rnet"
)

// carrier is one way in which peers reach a handler. Most tests run over each.
type carrier struct {
	name string
	cfg  Config
}

var carriers = []carrier{
	{"tcp", Config{Transport: rnet.TCP}},
	{"soft", Config{Transport: rnet.Soft}},
	{"soft-narrow", Config{Transport: rnet.Soft, Limits: rnet.Limits{RingSize: 64 << 10, Window: 4 << 10}}},
	{"soft-efficient", Config{Transport: rnet.Soft, Profile: rnet.Efficient}},
}

// over runs f as a subtest for each carrier.
func over(t *testing.T, f func(t *testing.T, k carrier)) {
	for _, k := range carriers {
		t.Run(k.name, func(t *testing.T) {
			if k.cfg.Transport == rnet.Soft && runtime.GOOS != "linux" {
				t.Skip("the software HCA needs Linux")
			}
			f(t, k)
		})
	}
}

func (k carrier) dialer() *rnet.Dialer { return k.cfg.dialer() }

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

// booted tells when a handler's engine runs. It passes everything on.
type booted struct {
	gnet.EventHandler
	engine atomic.Pointer[gnet.Engine]
}

func (h *booted) OnBoot(eng gnet.Engine) gnet.Action {
	h.engine.Store(&eng)
	return h.EventHandler.OnBoot(eng)
}

// serve runs handler at a free port of the loopback address until the test
// ends.
func (k carrier) serve(t testing.TB, handler gnet.EventHandler, opts ...gnet.Option) *served {
	t.Helper()
	s := &served{address: freeAddress(t), ended: make(chan error, 1)}
	h := &booted{EventHandler: handler}
	opts = append([]gnet.Option{gnet.WithLogger(quiet{})}, opts...)
	go func() { s.ended <- k.cfg.Run(h, "tcp://"+s.address, opts...) }() // ended by stop
	t.Cleanup(func() { s.stop(t) })
	eventually(t, "the handler is served", func() bool {
		c, err := k.dialer().Dial("tcp", s.address)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	s.engine = *h.engine.Load()
	return s
}

// stop ends the engine, unless it has ended, and waits for Run to return.
func (s *served) stop(t testing.TB) {
	t.Helper()
	if s.ended == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s.engine.Stop(ctx)
	s.await(t)
}

// await waits for Run to return.
func (s *served) await(t testing.TB) {
	t.Helper()
	select { // ended by the engine, or patience
	case err := <-s.ended:
		s.ended = nil
		require.NoError(t, err)
	case <-time.After(patience):
		t.Fatal("Run does not return")
	}
}

// patience is how long a test waits for what must happen.
const patience = 20 * time.Second

func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

func freeAddress(t testing.TB) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	return ln.Addr().String()
}

// quiet is a logger that says nothing.
type quiet struct{}

func (quiet) Debugf(string, ...any) {}
func (quiet) Infof(string, ...any)  {}
func (quiet) Warnf(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}
func (quiet) Fatalf(string, ...any) {}
