package rgnet

import (
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/panjf2000/gnet/v2"
)

// checked passes all callbacks on to a handler, and sees to it that they come
// as gnet promises: OnOpen first, OnClose last, each once, and no two at once
// on one event loop (but OnClose, which a callback's own Write calls if it fails).
type checked struct {
	gnet.EventHandler
	t      testing.TB
	booted chan struct{}
	engine gnet.Engine // set before booted is closed

	mu    sync.Mutex
	conns map[gnet.Conn]bool // open ones, guarded by mu
	seen  int                // connections so far, guarded by mu
	loops sync.Map           // gnet's loop to *running
	shut  atomic.Int32       // calls of OnShutdown
}

func check(t testing.TB, handler gnet.EventHandler) *checked {
	h := &checked{EventHandler: handler, t: t, booted: make(chan struct{}), conns: make(map[gnet.Conn]bool)}
	t.Cleanup(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		for c := range h.conns {
			t.Errorf("connection %v was opened and not closed", c)
		}
	})
	return h
}

// running are the callbacks that run on one event loop: none, one, or one and
// OnClose, which it has called.
type running struct {
	mu    sync.Mutex
	depth int    // guarded by mu
	who   string // the goroutine; guarded by mu
}

func (h *checked) enter(c gnet.Conn, closes bool) (leave func()) {
	v, _ := h.loops.LoadOrStore(gnetLoop(c), new(running))
	r := v.(*running)
	who := goroutine()
	r.mu.Lock()
	if r.depth > 0 && (!closes || who != r.who) {
		h.t.Error("two callbacks of one event loop run at once")
	}
	r.depth++
	r.who = who
	r.mu.Unlock()
	return func() {
		r.mu.Lock()
		r.depth--
		r.mu.Unlock()
	}
}

// goroutine returns a name of the calling goroutine.
func goroutine() string {
	var buf [64]byte
	line := buf[:runtime.Stack(buf[:], false)] // "goroutine 17 [running]: ..."
	name, _, _ := strings.Cut(string(line), " [")
	return name
}

func (h *checked) OnBoot(eng gnet.Engine) gnet.Action {
	h.engine = eng
	close(h.booted)
	return h.EventHandler.OnBoot(eng)
}

func (h *checked) OnShutdown(eng gnet.Engine) {
	if h.shut.Add(1) > 1 {
		h.t.Error("OnShutdown was called twice")
	}
	h.EventHandler.OnShutdown(eng)
}

func (h *checked) OnOpen(c gnet.Conn) ([]byte, gnet.Action) {
	defer h.enter(c, false)()
	h.mu.Lock()
	if h.conns[c] {
		h.t.Error("OnOpen was called twice")
	}
	h.conns[c] = true
	h.seen++
	h.mu.Unlock()
	return h.EventHandler.OnOpen(c)
}

func (h *checked) OnTraffic(c gnet.Conn) gnet.Action {
	defer h.enter(c, false)()
	if !h.isOpen(c) {
		h.t.Error("OnTraffic was called for a connection that is not open")
	}
	return h.EventHandler.OnTraffic(c)
}

func (h *checked) OnClose(c gnet.Conn, err error) gnet.Action {
	defer h.enter(c, true)()
	h.mu.Lock()
	if !h.conns[c] {
		h.t.Error("OnClose was called for a connection that is not open")
	}
	delete(h.conns, c)
	h.mu.Unlock()
	return h.EventHandler.OnClose(c, err)
}

func (h *checked) isOpen(c gnet.Conn) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.conns[c]
}

// idle reports whether there has been a connection, and none is left.
func (h *checked) idle() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.seen > 0 && len(h.conns) == 0
}

func (h *checked) OnTick() (time.Duration, gnet.Action) { return h.EventHandler.OnTick() }

// script is a handler made of functions; those that are nil do nothing.
type script struct {
	boot     func(gnet.Engine) gnet.Action
	shutdown func(gnet.Engine)
	open     func(gnet.Conn) ([]byte, gnet.Action)
	traffic  func(gnet.Conn) gnet.Action
	close    func(gnet.Conn, error) gnet.Action
	tick     func() (time.Duration, gnet.Action)
}

func (s *script) OnBoot(eng gnet.Engine) gnet.Action {
	if s.boot == nil {
		return gnet.None
	}
	return s.boot(eng)
}

func (s *script) OnShutdown(eng gnet.Engine) {
	if s.shutdown != nil {
		s.shutdown(eng)
	}
}

func (s *script) OnOpen(c gnet.Conn) ([]byte, gnet.Action) {
	if s.open == nil {
		return nil, gnet.None
	}
	return s.open(c)
}

func (s *script) OnTraffic(c gnet.Conn) gnet.Action {
	if s.traffic == nil {
		c.Discard(-1)
		return gnet.None
	}
	return s.traffic(c)
}

func (s *script) OnClose(c gnet.Conn, err error) gnet.Action {
	if s.close == nil {
		return gnet.None
	}
	return s.close(c, err)
}

func (s *script) OnTick() (time.Duration, gnet.Action) {
	if s.tick == nil {
		return time.Hour, gnet.None
	}
	return s.tick()
}
