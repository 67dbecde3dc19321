package harness

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/panjf2000/gnet/v2"
)

// callers is the load of a client whose work event handlers do. Each
// connection has one request under way: the handler that gets its answer sends
// the next one. So the clock is read once for both, and what a handler needs
// to check an answer and to stamp a request is part of the latency.
type callers struct {
	gnet.BuiltinEventEngine
	c       *client
	engine  eventClient
	started bool
	list    []*caller

	until time.Duration // since the epoch: no more requests; set while nothing is under way
	busy  atomic.Int64  // connections that have a request under way
	quiet chan struct{} // closed when there is none

	open    atomic.Int64 // connections of which OnClose is to come
	closing atomic.Bool  // and by our own doing

	mu    sync.Mutex
	loops map[gnet.EventLoop]*callerLoop // guarded by mu
}

// callerLoop is what the connections of one event loop share. Only its
// goroutine uses it while work is done.
type callerLoop struct {
	latency *recorder
	out     []byte // one message
}

// caller is one connection.
type caller struct {
	conn gnet.Conn
	loop *callerLoop // set by OnOpen
	next uint64      // number of the message under way, or of the next one
	sent time.Duration
	ops  int64
	busy bool
	gone bool // OnClose was called
}

func newCallers(c *client) *callers {
	return &callers{c: c, loops: make(map[gnet.EventLoop]*callerLoop)}
}

// start starts the event loops.
func (h *callers) start() error {
	if h.started {
		return nil
	}
	if h.c.t.engine.client == nil {
		return errors.New("this transport serves no event handlers")
	}
	var err error
	if h.engine, err = h.c.t.engine.client(h, eventOptions(h.c.w)...); err != nil {
		return fmt.Errorf("make gnet client: %w", err)
	}
	if err := h.engine.Start(); err != nil {
		return fmt.Errorf("start gnet client: %w", err)
	}
	h.started = true
	return nil
}

func (h *callers) connect(n int) {
	if err := h.start(); err != nil {
		h.c.fail(err)
		return
	}
	h.closing.Store(false)
	var dialers sync.WaitGroup
	var mu sync.Mutex // guards h.list
	var begun atomic.Int64
	for range min(n, connectAtOnce) {
		dialers.Go(func() {
			for int(begun.Add(1)) <= n {
				k, err := h.dial()
				if err != nil {
					h.c.fail(fmt.Errorf("dial: %w", err))
					return
				}
				mu.Lock()
				h.list = append(h.list, k)
				mu.Unlock()
			}
		})
	}
	dialers.Wait()
	h.work(0)
}

func (h *callers) dial() (*caller, error) {
	k := new(caller)
	id := int(h.c.opened.Add(1))
	k.next = firstNumber(id)
	conn, err := h.engine.DialContext(h.c.t.engine.network, h.c.addr, k)
	if err != nil {
		return nil, err
	}
	k.conn = conn
	nature, fellBack := h.c.t.engine.describe(conn, h.c.addr)
	h.c.note(id, fellBack, func() string { return nature })
	return k, nil
}

// OnOpen gives the connection to its loop.
func (h *callers) OnOpen(conn gnet.Conn) ([]byte, gnet.Action) {
	k, ok := conn.Context().(*caller)
	if !ok {
		return nil, gnet.Close
	}
	h.open.Add(1)
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.loops[conn.EventLoop()]
	if l == nil {
		if len(h.loops) >= len(h.c.lats) { // TCP connections of rgnet have gnet's loops
			h.c.lats = append(h.c.lats, newRecorders(1)...)
		}
		l = &callerLoop{latency: h.c.lats[len(h.loops)], out: make([]byte, h.c.w.Size)}
		h.loops[conn.EventLoop()] = l
	}
	k.loop = l
	return nil, gnet.None
}

// work sends a request on every connection, and then as long as d lasts the
// next one for each answer.
func (h *callers) work(d time.Duration) int64 {
	if len(h.list) == 0 {
		return 0
	}
	before := h.ops()
	byLoop := make(map[gnet.EventLoop][]*caller)
	for _, k := range h.list {
		byLoop[k.conn.EventLoop()] = append(byLoop[k.conn.EventLoop()], k)
	}
	h.quiet = make(chan struct{})
	h.busy.Store(int64(len(h.list)))
	h.until = time.Since(h.c.epoch) + d
	for el, list := range byLoop {
		begin := func(context.Context) error {
			for _, k := range list {
				k.busy = true
				if k.gone {
					h.rest(k)
				} else {
					h.call(k, time.Since(h.c.epoch))
				}
			}
			return nil
		}
		if err := el.Execute(context.Background(), gnet.RunnableFunc(begin)); err != nil {
			h.c.fail(fmt.Errorf("begin on event loop: %w", err))
			return 0
		}
	}
	<-h.quiet // ended by the last answer of each connection, or its end
	return h.ops() - before
}

func (h *callers) ops() (n int64) {
	for _, k := range h.list {
		n += k.ops
	}
	return n
}

// call sends the next request.
func (h *callers) call(k *caller, now time.Duration) {
	stamp(k.loop.out, k.next, 0)
	k.sent = now
	if _, err := k.conn.Write(k.loop.out); err != nil {
		h.c.fail(fmt.Errorf("write: %w", err))
		h.rest(k)
	}
}

// rest says that k has no request under way any more.
func (h *callers) rest(k *caller) {
	if !k.busy {
		return
	}
	k.busy = false
	if h.busy.Add(-1) == 0 {
		close(h.quiet)
	}
}

// OnTraffic takes the answer, if it is there as a whole, and sends the next
// request.
func (h *callers) OnTraffic(conn gnet.Conn) gnet.Action {
	k := conn.Context().(*caller)
	if conn.InboundBuffered() < h.c.w.Size {
		return gnet.None
	}
	answer, err := conn.Next(h.c.w.Size)
	if err == nil {
		err = check(answer, k.next)
	}
	if err != nil {
		h.c.fail(err)
		h.rest(k)
		return gnet.Close
	}
	now := time.Since(h.c.epoch)
	k.loop.latency.record(now - k.sent)
	k.next++
	k.ops++
	if now < h.until {
		h.call(k, now)
	} else {
		h.rest(k)
	}
	return gnet.None
}

func (h *callers) OnClose(conn gnet.Conn, err error) gnet.Action {
	k, ok := conn.Context().(*caller)
	if !ok {
		return gnet.None
	}
	if !h.closing.Load() {
		h.c.fail(fmt.Errorf("the connection has ended: %w", errors.Join(err, errUnasked)))
	}
	k.gone = true
	h.rest(k)
	h.open.Add(-1)
	return gnet.None
}

var errUnasked = errors.New("not by the client's will")

// closeTime is how long connections may take to close.
const closeTime = 5 * time.Second

func (h *callers) closeConns() {
	h.closing.Store(true)
	for _, k := range h.list {
		if err := k.conn.Close(); err != nil {
			h.c.fail(fmt.Errorf("close: %w", err))
		}
	}
	h.list = nil
	// ended by the loops, or the clock
	for end := time.Now().Add(closeTime); h.open.Load() > 0; time.Sleep(100 * time.Microsecond) {
		if time.Now().After(end) {
			h.c.fail(fmt.Errorf("close: %d connections are still there", h.open.Load()))
			return
		}
	}
}
