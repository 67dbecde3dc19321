package rgnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/panjf2000/gnet/v2"
	gerrors "github.com/panjf2000/gnet/v2/pkg/errors"

	"github.com/seed-b9b531af/ramjet/rnet/internal/loop"
	"github.com/seed-b9b531af/ramjet/rnet/internal/mux"
)

// eventLoop is our half of one of gnet's event loops: the streams that it
// serves, what is to be done on it, and how it is woken. It is the EventLoop of
// its streams.
//
// Lost wake-ups: the loop says that it sleeps (rest) before it looks for the
// last time; who brings work brings it before it looks at rest.
type eventLoop struct {
	b      *bridge
	gnet   gnet.EventLoop
	wakeup *wakeSocket
	poller *mux.Poller

	streams atomic.Int64  // open ones
	tcp     *atomic.Int64 // connections that gnet itself serves on this loop
	rest    atomic.Uint32 // what the next Wake has to do

	// Of the loop's goroutine.
	conns    map[*conn]struct{} // open, or with something to be sent
	spin     spinner
	asleep   time.Time // since when the loop is in gnet's epoll; zero if it was to come back at once
	shutdown bool      // a callback has asked for the end of the engine: of the handler only OnClose is called then
	whole    []byte    // Writev puts small pieces together in it

	pending atomic.Bool // tasks is not empty
	mu      sync.Mutex
	tasks   []task // guarded by mu
	spare   []task
	ended   bool // guarded by mu: takes no tasks any more
}

// The longest that the loop works before it lets gnet work: that costs
// a write and a read, and what gnet has to do waits meanwhile.
const (
	runTime    = 500 * time.Microsecond
	runWithTCP = 50 * time.Microsecond
)

// The values of rest.
const (
	awake    uint32 = iota
	asleep          // in gnet's epoll: wake it by the socket
	sleeping        // at its only session's channel: wake the poller
)

// lookRounds is how many rounds lie between two looks at the clock.
const lookRounds = 8

// run is what the loop does when gnet calls it: it works and polls as long as
// there is something to do, or something may come soon.
func (l *eventLoop) run() gnet.Action {
	limit := runTime
	if l.tcp.Load() > 0 {
		limit = runWithTCP
	}
	begin := time.Now()
	end := begin.Add(limit)
	l.poller.Iteration()
	if !l.asleep.IsZero() {
		l.poller.Slept(begin.Sub(l.asleep))
		l.asleep = time.Time{}
	}
	worked := false
	for round := 1; ; round++ {
		busy := l.work() + l.poller.Poll()
		if l.shutdown {
			return l.b.noteShutdown(gnet.Shutdown)
		}
		if busy > 0 {
			worked = true
			l.spin.hit(l.poller)
			if round%lookRounds == 0 && time.Now().After(end) {
				return l.yield()
			}
			continue
		}
		now, spin := l.spin.on(l.poller)
		switch {
		case spin && now.After(end):
			return l.yield()
		case spin, l.sleepOnThread(end):
		case l.park(begin.Add(l.b.parkTime)):
			end = time.Now().Add(limit)
		case worked && !time.Now().Before(end):
			return l.yield() // it may go on like this
		case l.sleep():
			return gnet.None
		}
	}
}

// threadSlice is for how long the loop sleeps on its thread where nothing comes, and gnet waits
// then. A timer that is due before the kernel's next tick (4 ms with 250 Hz) would have to be set and
// taken back for each sleep, and in a virtual machine that costs as much as the sleep itself.
const threadSlice = 4 * time.Millisecond

// sleepOnThread lets the thread sleep until there is something to do, or the slice is over. It
// returns false if the loop must sleep elsewhere: also at the end of the run.
func (l *eventLoop) sleepOnThread(end time.Time) bool {
	now := time.Now()
	if l.tcp.Load() > 0 || !now.Before(end) {
		return false
	}
	l.rest.Store(sleeping)
	slept := l.poller.Sleep(now.Add(threadSlice), l.hasWork)
	l.rest.Store(awake)
	return slept
}

// maxPark is for how long the loop of a client leaves gnet without a chance.
const maxPark = 100 * time.Millisecond

// park lets the goroutine wait for its session alone until there is something to do, or that time has come. One
// wake-up ends it, and not that of the engine, and then that of gnet's epoll. It returns false where gnet may have something to
// do meanwhile, which only a client knows.
func (l *eventLoop) park(until time.Time) bool {
	if !l.b.client || l.b.opts.LockOSThread || l.tcp.Load() > 0 || l.b.gnetIsCalled() || !time.Now().Before(until) {
		return false
	}
	l.rest.Store(sleeping)
	parked := l.poller.Park(until, func() bool { return l.hasWork() || l.b.gnetIsCalled() })
	l.rest.Store(awake)
	return parked
}

// hasWork is asked after rest was set to sleeping. A Wake may have come since then for a task that was done before it:
// it has taken rest back, and the next would not wake the poller.
func (l *eventLoop) hasWork() bool { return l.pending.Load() || l.rest.Load() != sleeping }

func (b *bridge) gnetIsCalled() bool { return b.calls.Load() > 0 }

// call ends the waits of loops that gnet does not know of: it needs them, until calls is taken back.
func (b *bridge) call() {
	b.calls.Add(1)
	for _, l := range b.allLoops() {
		l.Wake()
	}
}

// keepAwake has no loop park any more if gnet does not tell of the end of c, as it does not for a datagram socket with a peer.
func (b *bridge) keepAwake(c net.Conn) {
	if _, ok := c.(*net.UDPConn); ok {
		b.call()
	}
}

// yield lets gnet work, and comes back after it.
func (l *eventLoop) yield() gnet.Action {
	if l.b.opts.EdgeTriggeredIO || l.b.opts.EdgeTriggeredIOChunk > 0 {
		go l.wakeup.wake() // gnet reads an edge-triggered socket until it is empty; ends by itself
	} else {
		l.wakeup.wake()
	}
	return gnet.None
}

// sleep makes all who bring work wake the loop, and reports whether there is none yet.
func (l *eventLoop) sleep() bool {
	l.rest.Store(asleep)
	if l.poller.Arm() && !l.pending.Load() {
		l.asleep = time.Now()
		return true
	}
	l.rest.Store(awake) // if it was woken meanwhile it is woken once in vain
	return false
}

// Wake makes the loop look for work soon.
func (l *eventLoop) Wake() {
	switch rest := l.rest.Load(); {
	case rest == awake || !l.rest.CompareAndSwap(rest, awake):
	case rest == asleep:
		l.wakeup.wake()
	case rest == sleeping:
		l.poller.Wake()
	}
}

// Accept makes the connection of a stream that a peer has opened.
func (l *eventLoop) Accept(s *mux.LoopStream) mux.Sink { return newConn(l, s) }

// post leaves a task for the loop.
func (l *eventLoop) post(t task) error {
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		return gerrors.ErrEngineInShutdown
	}
	l.tasks = append(l.tasks, t)
	l.pending.Store(true)
	l.mu.Unlock()
	l.Wake()
	return nil
}

// work does the tasks that are there, and returns how many.
func (l *eventLoop) work() int {
	if !l.pending.Load() {
		return 0
	}
	l.mu.Lock()
	list := l.tasks
	l.tasks = l.spare[:0]
	l.pending.Store(false)
	l.mu.Unlock()
	for i := range list {
		if err := list[i].do(); errors.Is(err, gerrors.ErrEngineShutdown) {
			l.shutdown = true
		}
	}
	clear(list)
	if l.spare = list; cap(list) > keptTasks {
		l.spare = nil
	}
	return len(list)
}

// keptTasks is for how many tasks each of the two lists keeps memory, 2.5 MiB: a burst may have been
// of any size.
const keptTasks = 1 << 15

// act does what a callback asks for.
func (l *eventLoop) act(c *conn, action gnet.Action) error {
	switch action {
	case gnet.Close:
		return c.close(nil)
	case gnet.Shutdown:
		l.shutdown = true
		return gerrors.ErrEngineShutdown
	}
	return nil
}

// exit is the loop's last act, when gnet closes its connections: ours are closed
// too.
func (l *eventLoop) exit() {
	for c := range l.conns {
		c.close(nil)
	}
	for c := range l.conns { // those that still have something to send
		c.end(true)
	}
	l.mu.Lock()
	l.ended = true
	l.mu.Unlock()
	l.b.noteLoopEnd()
	l.work()
	l.poller.Close()
	l.wakeup.remove()
}

// Register dials the address as package rnet does, and serves the connection
// on this loop.
func (l *eventLoop) Register(ctx context.Context, addr net.Addr) (<-chan gnet.RegisteredResult, error) {
	if addr == nil {
		return nil, gerrors.ErrInvalidNetworkAddress
	}
	if l.hasEnded() {
		return nil, gerrors.ErrEngineInShutdown
	}
	results := make(chan gnet.RegisteredResult, 1)
	go func() { // ends with the dial, which has time limits of its own
		defer close(results)
		dialCtx, cancel := l.b.dialContext(ctx)
		defer cancel()
		c, err := l.dial(dialCtx, addr.Network(), addr.String(), gnet.FromContext(ctx), l.enrollServer)
		results <- gnet.RegisteredResult{Conn: c, Err: err}
	}()
	return results, nil
}

// enrollServer gives a connection of the system to gnet's loop.
func (l *eventLoop) enrollServer(conn net.Conn, userContext any) (gnet.Conn, error) {
	results, err := l.enroll(gnet.NewContext(context.Background(), userContext), conn)
	if err != nil {
		conn.Close()
		return nil, err
	}
	select { // ended by gnet, or the engine's end
	case r := <-results:
		return r.Conn, r.Err
	case <-l.b.down:
		return nil, gerrors.ErrEngineInShutdown
	}
}

// dial opens a stream that this loop serves, or has another connection
// enrolled.
func (l *eventLoop) dial(ctx context.Context, network, address string, userContext any, enroll func(net.Conn, any) (gnet.Conn, error)) (gnet.Conn, error) {
	request := loop.Dial{Poller: l.poller}
	nc, err := l.b.cfg.dialer().DialContext(request.Context(ctx), network, address)
	if err != nil {
		return nil, err
	}
	if request.Stream == nil {
		return enroll(nc, userContext)
	}
	var c *conn
	refusal := error(gerrors.ErrEngineInShutdown)
	opened := make(chan struct{})
	err = l.post(task{kind: taskRun, run: func() error {
		defer close(opened)
		if l.shutdown || l.hasEnded() {
			return nil
		}
		if c = l.attach(request.Stream, userContext); c == nil { // its session has failed meanwhile
			refusal = &net.OpError{Op: "dial", Net: network, Addr: nc.RemoteAddr(), Err: syscall.ECONNRESET}
		}
		return nil
	}})
	if err == nil {
		<-opened // ended by the loop, or its end
	}
	if c == nil {
		nc.Close()
		return nil, refusal
	}
	return c, nil
}

func (l *eventLoop) attach(st *mux.Stream, userContext any) (c *conn) {
	l.poller.Attach(st, func(s *mux.LoopStream) mux.Sink {
		c = newConn(l, s)
		c.SetContext(userContext)
		c.SetSafeContext(userContext)
		return c
	})
	return c
}

func (l *eventLoop) hasEnded() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended
}

// Enroll gives a connection of the system to the loop. As with Client.Enroll, it
// can be no stream, and it cannot be TCP where the configuration allows none.
func (l *eventLoop) Enroll(ctx context.Context, c net.Conn) (<-chan gnet.RegisteredResult, error) {
	if err := refuseStream(c); err != nil {
		return nil, err
	}
	if _, overTCP := c.(*net.TCPConn); overTCP && !l.b.tcp {
		return nil, fmt.Errorf("rgnet: enroll the TCP connection to %v: the configuration allows none: %w", c.RemoteAddr(), gerrors.ErrUnsupportedOp)
	}
	return l.enroll(ctx, c)
}

func (l *eventLoop) enroll(ctx context.Context, c net.Conn) (<-chan gnet.RegisteredResult, error) {
	if !l.b.client {
		return l.gnet.Enroll(ctx, c)
	}
	l.b.keepAwake(c)
	l.b.call() // until it is open: gnet gives it to its loop later, from another goroutine
	results, err := l.gnet.Enroll(ctx, c)
	if err != nil {
		l.b.calls.Add(-1)
		return nil, err
	}
	opened := make(chan gnet.RegisteredResult, 1)
	go func() { // ended by gnet, or the engine's end
		defer close(opened)
		defer l.b.calls.Add(-1)
		select {
		case r := <-results:
			opened <- r
		case <-l.b.down:
			opened <- gnet.RegisteredResult{Err: gerrors.ErrEngineInShutdown}
		}
	}()
	return opened, nil
}

// Execute runs r on the loop's goroutine.
func (l *eventLoop) Execute(ctx context.Context, r gnet.Runnable) error {
	if r == nil {
		return gerrors.ErrNilRunnable
	}
	return l.post(task{kind: taskRun, run: func() error { return r.Run(ctx) }})
}

// Schedule is not supported, as in gnet.
func (l *eventLoop) Schedule(context.Context, gnet.Runnable, time.Duration) error {
	return gerrors.ErrUnsupportedOp
}

// Close closes a connection of this loop, on the loop's goroutine.
func (l *eventLoop) Close(c gnet.Conn) error {
	if own, ok := c.(*conn); ok {
		if own.shut.Load() {
			own.giveUp()
		}
		return own.close(nil)
	}
	return l.gnet.Close(c)
}
