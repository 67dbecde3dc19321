package harness

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// client is the dialing process. A round is prepare, run and finish.
type client struct {
	t     transport
	addr  string
	w     workload
	epoch time.Time // all times in the loops are since then
	lats  []*recorder
	late  *recorder // of an open loop: how late messages were written
	load  load

	links    []*link
	program  Client       // nil before connect, and if the workload has no program
	beside   computing    // of a workload that is Busy
	opened   atomic.Int64 // connections so far: gives each its id
	answered atomic.Int64 // messages of the open loop in progress
	fellBack atomic.Int64 // of those, TCP although that was not asked for

	ops     int64         // of the run
	elapsed time.Duration // of the run
	latest  time.Duration // since the epoch: the last answer of an open loop
	cpu     time.Duration // of the run

	mu       sync.Mutex
	failures int    // guarded by mu: since prepare
	first    error  // guarded by mu: the first of them
	used     string // guarded by mu: what the first connection is, or one that fell back
}

// load has the client's connections and does the work on them: in goroutines,
// which is the client itself, or in event handlers.
type load interface {
	// connect adds n connections, and shows by a message and its answer on
	// each that the server has it too.
	connect(n int)
	// work does the workload for about d and returns how many operations that
	// were.
	work(d time.Duration) int64
	closeConns()
}

func newClient(t transport, addr string, w workload) *client {
	c := &client{t: t, addr: addr, w: w, epoch: time.Now(), late: newRecorders(1)[0]}
	if w.Loops > 0 {
		c.lats = newRecorders(w.Loops)
		c.load = newCallers(c)
	} else {
		c.lats = newRecorders(w.Conns)
		c.load = c
	}
	return c
}

func (c *client) obey(cmd command) reply {
	switch cmd {
	case prepare:
		return c.prepare()
	case run:
		return c.run()
	case finish:
		return c.finish()
	case snapshot:
		return reply{CPU: cpuTime()}
	case memoryInUse:
		var r reply
		readMemory(&r)
		return r
	default:
		return reply{Err: fmt.Sprintf("the client does not know %q", cmd)}
	}
}

func (c *client) prepare() reply {
	c.load.closeConns()
	c.failures, c.first = 0, nil
	c.ops, c.elapsed, c.cpu = 0, 0, 0
	defer func() {
		resetRecorders(c.lats)
		c.late.h.Reset()
	}()
	if c.w.Busy {
		c.beside.start()
	}
	conns := c.w.Conns
	switch c.w.Kind {
	case openings, sessions:
		conns = 0
	case idling:
		conns = 1 // what a session costs once is not an idle connection's
	}
	c.load.connect(conns)
	if r := c.failed(); r.Failures > 0 {
		return r
	}
	if !c.w.holds() {
		c.load.work(c.w.Warmup)
	}
	return c.failed()
}

// run does the measured work. Nothing but that work happens in it: its CPU
// time is part of the result.
func (c *client) run() reply {
	cpu, began := cpuTime(), time.Since(c.epoch)
	if c.w.holds() {
		c.load.connect(c.w.Conns)
		c.ops = int64(c.w.Conns)
	} else {
		c.ops = c.load.work(c.w.Duration)
	}
	c.elapsed, c.cpu = time.Since(c.epoch)-began, cpuTime()-cpu
	if c.w.Rate > 0 {
		c.elapsed = max(c.latest, began+c.w.Duration) - began
	}
	return reply{}
}

func (c *client) finish() reply {
	c.beside.stop()
	c.load.closeConns()
	r := c.failed()
	r.Ops, r.Elapsed, r.CPU = c.ops, c.elapsed, c.cpu
	r.Used, r.Opened, r.FellBack = c.used, c.opened.Load(), c.fellBack.Load()
	r.Late = time.Duration(c.late.h.ValueAtQuantile(50))
	var err error
	if r.Latency, err = mergeRecorders(c.lats); err != nil {
		r.Err = err.Error()
	}
	return r
}

func (c *client) closeConns() {
	for _, l := range c.links {
		if l.conn == nil {
			continue // the program has it
		}
		if err := l.conn.Close(); err != nil {
			c.fail(fmt.Errorf("close: %w", err))
		}
	}
	c.links = nil
	c.closeProgram()
}

func (c *client) close() { c.closeConns() }

func (c *client) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failures++
	if c.first == nil {
		c.first = fmt.Errorf("client: %w", err)
	}
}

func (c *client) failed() reply {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := reply{Failures: c.failures}
	if c.first != nil {
		r.Failure = c.first.Error()
	}
	return r
}

// dial opens a connection and notes what it really is.
func (c *client) dial() (net.Conn, int, error) {
	conn, err := c.t.dial(c.addr)
	if err != nil {
		return nil, 0, err
	}
	id := int(c.opened.Add(1))
	_, tcp := conn.(*net.TCPConn)
	c.note(id, tcp && c.t.name != "tcp", func() string { return c.t.nature(conn, c.addr) })
	return conn, id, nil
}

// note keeps what the first connection is, or one that fell back to TCP.
func (c *client) note(id int, fellBack bool, nature func() string) {
	firstFall := fellBack && c.fellBack.Add(1) == 1
	if id != 1 && !firstFall {
		return
	}
	used := nature()
	c.mu.Lock()
	c.used = used
	c.mu.Unlock()
}

// connectAtOnce is the number of set-up dials in flight: set-up is not
// measured, but a thousand dials one by one would hold up everybody.
const connectAtOnce = 16

func (c *client) connect(n int) {
	if c.w.Program != "" {
		c.connectProgram(n)
		return
	}
	var dialers sync.WaitGroup
	var mu sync.Mutex // guards c.links
	var begun atomic.Int64
	for range min(n, connectAtOnce) {
		dialers.Go(func() {
			for int(begun.Add(1)) <= n {
				conn, id, err := c.dial()
				if err != nil {
					c.fail(fmt.Errorf("dial: %w", err))
					return
				}
				mu.Lock()
				l := newLink(conn, id, c.w.Size, c.lats[len(c.links)%len(c.lats)])
				l.think = c.w.Think
				c.links = append(c.links, l)
				mu.Unlock()
				if c.w.Kind == oneWay {
					continue
				}
				if _, _, err := l.exchange(c.epoch); err != nil {
					c.fail(err)
					return
				}
				if c.w.holds() {
					l.out, l.in = nil, nil // or their memory would count
				}
			}
		})
	}
	dialers.Wait()
}

func (c *client) work(d time.Duration) int64 {
	switch {
	case c.w.Kind == oneWay:
		return c.bursts(d)
	case c.w.Kind == openings:
		return c.openings(d)
	case c.w.Rate > 0 && c.w.Program != "":
		return c.pacedCalls(d)
	case c.w.Rate > 0:
		return c.openLoop(d)
	default:
		return c.closedLoop(d)
	}
}

// eachLink runs do for all connections at once, in a goroutine each, until
// all are done, and returns the number of operations that they added.
func (c *client) eachLink(do func(i int, l *link) error) int64 {
	var before, after int64
	var workers sync.WaitGroup
	begin := make(chan struct{})
	for i, l := range c.links {
		before += l.ops
		workers.Go(func() {
			<-begin // closed below once all goroutines are there
			if err := do(i, l); err != nil {
				c.fail(err)
			}
		})
	}
	close(begin)
	workers.Wait()
	for _, l := range c.links {
		after += l.ops
	}
	return after - before
}

func (c *client) closedLoop(d time.Duration) int64 {
	until := time.Since(c.epoch) + d
	return c.eachLink(func(_ int, l *link) error { return l.roundTrips(c.epoch, until) })
}

func (c *client) bursts(d time.Duration) int64 {
	var stop atomic.Bool
	timer := time.AfterFunc(d, func() { stop.Store(true) })
	defer timer.Stop()
	return c.eachLink(func(_ int, l *link) error { return l.burst(&stop) })
}
