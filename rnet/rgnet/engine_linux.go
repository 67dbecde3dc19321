package rgnet

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"math"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/panjf2000/gnet/v2"
	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/seed-b9b531af/ramjet/rnet/internal/loop"
	"github.com/seed-b9b531af/ramjet/rnet/internal/mux"
)

// bridge is the handler that gnet sees: it passes on what is about TCP
// connections, and serves streams when a loop is woken.
type bridge struct {
	handler  gnet.EventHandler
	cfg      Config
	opts     gnet.Options // what the user has asked for
	addrs    []string
	tcp      bool // TCP peers are served
	fast     bool // others are
	client   bool
	parkTime time.Duration // maxPark
	profile  fallback.Profile
	log      *slog.Logger
	readCap  int

	eng       gnet.Engine // set by OnBoot
	ticked    bool        // of the ticker's goroutine
	startErr  error       // why the engine was ended before it began
	loopCount int
	next      atomic.Uint32

	calls atomic.Int32 // of gnet, which all loops may have to answer

	running   chan struct{} // closed when each loop has its wake socket
	down      chan struct{} // closed by OnShutdown
	loopEnded chan struct{} // closed when a loop has ended, or is about to; a client's gnet may wait for it for ever then
	endOnce   sync.Once     // closes it
	tcpConns  sync.Map      // gnet.EventLoop to *atomic.Int64

	mu        sync.Mutex
	loops     []*eventLoop             // guarded by mu
	listeners map[string]loop.Listener // by what of addrs they are for; guarded by mu
	stopped   bool                     // guarded by mu
}

// engines maps a gnet.Engine to its *bridge.
var engines sync.Map

// CountConnections returns how many connections of either kind an engine that
// Run, Rotate or a Client has started serves, -1 if it is none.
func CountConnections(eng gnet.Engine) int {
	v, ok := engines.Load(eng)
	if !ok {
		return -1
	}
	count := 0
	b := v.(*bridge)
	b.tcpConns.Range(func(_, n any) bool {
		count += int(n.(*atomic.Int64).Load())
		return true
	})
	for _, l := range b.allLoops() {
		count += int(l.streams.Load())
	}
	return count
}

func (cfg Config) bridge(handler gnet.EventHandler, opts []gnet.Option) (*bridge, error) {
	b := &bridge{
		handler: handler, cfg: cfg, listeners: map[string]loop.Listener{},
		parkTime: maxPark, running: make(chan struct{}), down: make(chan struct{}), loopEnded: make(chan struct{}),
	}
	for _, o := range opts {
		o(&b.opts)
	}
	set, err := cfg.settings()
	if err != nil {
		return nil, err
	}
	b.tcp, b.fast = set.Transport == fallback.Auto || set.Transport == fallback.TCP, set.Transport != fallback.TCP
	b.profile, b.log = set.Session.Profile, set.Log
	b.loopCount = loops(&b.opts)
	if b.readCap = b.opts.ReadBufferCap; b.readCap <= 0 {
		b.readCap = math.MaxInt
	}
	return b, nil
}

// maxLoops is how many event loops gnet allows.
const maxLoops = math.MaxUint8 + 1

// loops is how many event loops gnet makes.
func loops(opts *gnet.Options) int {
	n := 1
	if opts.Multicore {
		n = runtime.NumCPU()
	}
	if opts.NumEventLoop > 0 {
		n = opts.NumEventLoop
	}
	return min(n, maxLoops)
}

func (cfg Config) rotate(handler gnet.EventHandler, addrs []string, opts []gnet.Option) error {
	b, err := cfg.bridge(handler, opts)
	if err != nil {
		return err
	}
	b.addrs = addrs
	if b.fast {
		opts = append(opts[:len(opts):len(opts)], func(o *gnet.Options) {
			o.Ticker = true // the first tick says that the loops run
			if o.LB == gnet.RoundRobin {
				o.LB = gnet.LeastConnections // as Register demands
			}
		})
	}
	defer b.forget()
	if b.fast {
		defer b.closeListeners() // if gnet did not get as far as OnShutdown
		b.listenFirst()
	}
	if err := gnet.Rotate(b, addrs, opts...); err != nil {
		return err
	}
	return b.startErr
}

func (b *bridge) forget() {
	if b.eng != (gnet.Engine{}) {
		engines.Delete(b.eng)
	}
}

// OnBoot is called before there are loops.
func (b *bridge) OnBoot(eng gnet.Engine) gnet.Action {
	b.eng = eng
	engines.Store(eng, b)
	return b.handler.OnBoot(eng)
}

// OnTick comes first when the loops run. Then the wake sockets are enrolled, and the other
// listeners opened.
func (b *bridge) OnTick() (time.Duration, gnet.Action) {
	if !b.ticked {
		b.ticked = true
		if b.startErr = b.start(); b.startErr != nil {
			return time.Hour, gnet.Shutdown
		}
	}
	if !b.opts.Ticker {
		return time.Hour, gnet.None
	}
	next, action := b.handler.OnTick()
	return next, b.noteShutdown(action)
}

// noteShutdown has all loops come to gnet for good if a callback ends the engine.
func (b *bridge) noteShutdown(action gnet.Action) gnet.Action {
	if action == gnet.Shutdown {
		b.noteLoopEnd()
		b.call()
	}
	return action
}

func (b *bridge) noteLoopEnd() { b.endOnce.Do(func() { close(b.loopEnded) }) }

func (b *bridge) hasLoopEnded() bool {
	select {
	case <-b.loopEnded:
		return true
	default:
		return false
	}
}

// start makes the engine serve streams. An error ends it: what the
// configuration demands cannot be had.
func (b *bridge) start() error {
	if !b.fast {
		return nil
	}
	err := b.enrollWakeSockets(func(ctx context.Context, nc net.Conn) error {
		results, err := b.register(ctx, nc)
		if err != nil {
			nc.Close()
			return err
		}
		select { // ended by gnet, or the engine's end
		case r := <-results:
			return r.Err
		case <-b.down:
			return errStopped
		}
	})
	if err == nil {
		close(b.running)
	} else {
		b.closeListeners()
	}
	for _, addr := range b.addrs {
		if err == nil {
			err = b.listen(addr)
		}
	}
	if errors.Is(err, errStopped) || b.tcp && err != nil {
		b.log.Debug("rgnet: TCP peers alone are served", "addresses", b.addrs, "err", err)
		return nil
	}
	return err
}

// register gives nc to a loop that has no wake socket yet: to one that serves TCP peers already, or
// else to the one that gnet chooses, which has the fewest connections. Where many peers came at once
// that would be the same loop again and again.
func (b *bridge) register(ctx context.Context, nc net.Conn) (<-chan gnet.RegisteredResult, error) {
	var bare gnet.EventLoop
	b.tcpConns.Range(func(el, _ any) bool {
		if el := el.(gnet.EventLoop); !b.hasWakeSocket(el) {
			bare = el
		}
		return bare == nil
	})
	if bare != nil {
		return bare.Enroll(ctx, nc)
	}
	return b.eng.Register(gnet.NewNetConnContext(ctx, nc))
}

var errStopped = errors.New("rgnet: the engine is being stopped")

// enrollWakeSockets enrolls sockets until each of gnet's loops has one.
func (b *bridge) enrollWakeSockets(enroll func(context.Context, net.Conn) error) error {
	named := b.opts.LB == gnet.SourceAddrHash // the loop depends on the name
	for try := 0; len(b.allLoops()) < b.loopCount; try++ {
		if try > 64*b.loopCount {
			return fmt.Errorf("rgnet: gnet gives connections to %d of %d event loops", len(b.allLoops()), b.loopCount)
		}
		socket, nc, err := newWakeSocket(named)
		if err != nil {
			return err
		}
		if err := enroll(gnet.NewContext(context.Background(), socket), nc); err != nil {
			socket.remove()
			return err
		}
	}
	return nil
}

// enrolled makes the half that is ours of the loop that gnet gave a wake socket to, unless
// it has one already. It is called on the loop.
func (b *bridge) enrolled(c gnet.Conn, socket *wakeSocket) gnet.Action {
	l := &eventLoop{b: b, gnet: c.EventLoop(), wakeup: socket, conns: make(map[*conn]struct{}), tcp: b.tcpCount(c.EventLoop())}
	if b.hasWakeSocket(l.gnet) {
		socket.remove()
		return gnet.Close
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	l.poller = mux.NewPoller(l, b.profile)
	l.spin.limit = l.poller.Spin()
	socket.loop = l
	l.rest.Store(asleep)
	b.loops = append(b.loops, l)
	return gnet.None
}

// hasWakeSocket reports whether one of gnet's loops has one.
func (b *bridge) hasWakeSocket(el gnet.EventLoop) bool {
	return slices.ContainsFunc(b.allLoops(), func(l *eventLoop) bool { return l.gnet == el })
}

func (b *bridge) tcpCount(el gnet.EventLoop) *atomic.Int64 {
	if n, ok := b.tcpConns.Load(el); ok {
		return n.(*atomic.Int64)
	}
	n, _ := b.tcpConns.LoadOrStore(el, new(atomic.Int64))
	return n.(*atomic.Int64)
}

func (b *bridge) allLoops() []*eventLoop {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.loops
}

// place chooses the loop of a session.
func (b *bridge) place(peer net.Addr) *mux.Poller {
	all := b.allLoops()
	switch b.opts.LB {
	case gnet.SourceAddrHash:
		return all[crc32.ChecksumIEEE([]byte(peer.String()))%uint32(len(all))].poller
	case gnet.LeastConnections:
		return b.leastBusy().poller
	}
	return all[(b.next.Add(1)-1)%uint32(len(all))].poller
}

// leastBusy returns the loop with the fewest connections, and of those the one
// with the fewest sessions.
func (b *bridge) leastBusy() *eventLoop {
	var best *eventLoop
	var load, sessions int
	for _, l := range b.allLoops() {
		n, m := int(l.streams.Load()+l.tcp.Load()), l.poller.Sessions()
		if best == nil || n < load || n == load && m < sessions {
			best, load, sessions = l, n, m
		}
	}
	return best
}

// OnShutdown closes our listeners. The loops, which end after it, close the
// connections.
func (b *bridge) OnShutdown(eng gnet.Engine) {
	close(b.down)
	b.closeListeners()
	b.handler.OnShutdown(eng)
}

// OnOpen passes a TCP connection on, and takes a wake socket in.
func (b *bridge) OnOpen(c gnet.Conn) ([]byte, gnet.Action) {
	if socket, ok := c.Context().(*wakeSocket); ok {
		return nil, b.enrolled(c, socket)
	}
	count := b.tcpCount(c.EventLoop()) // register finds the loop by it
	_, ok := c.RemoteAddr().(*net.TCPAddr)
	if ok && !b.tcp {
		c.SetContext(refused{})
		c.SetLinger(0)
		return nil, gnet.Close
	}
	if ok {
		b.countAccepted(c)
	}
	count.Add(1)
	out, action := b.handler.OnOpen(c)
	return out, b.noteShutdown(action)
}

// refused marks a TCP connection that the configuration does not allow.
type refused struct{}

// OnTraffic passes on what came over TCP, and lets a loop of ours run.
func (b *bridge) OnTraffic(c gnet.Conn) gnet.Action {
	socket, ok := c.Context().(*wakeSocket)
	if !ok {
		return b.noteShutdown(b.handler.OnTraffic(c))
	}
	c.Discard(-1)
	return socket.loop.run()
}

// OnClose passes on the end of a TCP connection. The end of a wake socket is that of
// its loop.
func (b *bridge) OnClose(c gnet.Conn, err error) gnet.Action {
	switch ctx := c.Context().(type) {
	case *wakeSocket:
		if ctx.loop != nil {
			ctx.loop.exit()
		}
		return gnet.None
	case refused:
		return gnet.None
	}
	b.tcpCount(c.EventLoop()).Add(-1)
	return b.noteShutdown(b.handler.OnClose(c, err))
}

func isStream(c net.Conn) bool {
	_, ok := c.(*rnet.Conn)
	return ok
}

// dialContext ends with ctx or the engine.
func (b *bridge) dialContext(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := make(chan struct{})
	go func() { // ended by the returned function, or the engine's end
		select {
		case <-b.down:
			cancel()
		case <-stop:
		}
	}()
	return ctx, func() { close(stop); cancel() }
}
