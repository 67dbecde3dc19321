package main

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

	links    []*link
	opened   atomic.Int64 // connections so far: gives each its id
	answered atomic.Int64 // messages of the open loop in progress
	fellBack atomic.Int64 // of those, TCP although that was not asked for

	ops     int64         // of the run
	elapsed time.Duration // of the run
	cpu     time.Duration // of the run

	mu       sync.Mutex
	failures int    // guarded by mu: since prepare
	first    error  // guarded by mu: the first of them
	used     string // guarded by mu: what the first connection is, or one that fell back
}

func newClient(t transport, addr string, w workload) *client {
	return &client{t: t, addr: addr, w: w, epoch: time.Now(), lats: newRecorders(w.Conns), late: newRecorders(1)[0]}
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
	case weigh:
		var r reply
		weighProcess(&r)
		return r
	default:
		return reply{Err: fmt.Sprintf("the client does not know %q", cmd)}
	}
}

func (c *client) prepare() reply {
	c.closeConns()
	c.failures, c.first = 0, nil
	conns := c.w.Conns
	switch c.w.Kind {
	case openings:
		conns = 0
	case idling:
		conns = 1 // what a session costs once is not an idle connection's
	}
	c.connect(conns)
	if c.failures > 0 {
		return c.failed()
	}
	if c.w.Kind != idling {
		c.work(c.w.Warmup)
	}
	resetRecorders(c.lats)
	c.late.h.Reset()
	return c.failed()
}

// run does the measured work. Nothing but that work happens in it: its CPU
// time is part of the result.
func (c *client) run() reply {
	cpu, began := cpuTime(), time.Since(c.epoch)
	if c.w.Kind == idling {
		c.connect(c.w.Conns)
		c.ops = int64(c.w.Conns)
	} else {
		c.ops = c.work(c.w.Duration)
	}
	c.elapsed, c.cpu = time.Since(c.epoch)-began, cpuTime()-cpu
	if c.w.Rate > 0 {
		c.elapsed = c.lastAnswer(began+c.w.Duration) - began
	}
	return reply{}
}

func (c *client) finish() reply {
	c.closeConns()
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
		if err := l.conn.Close(); err != nil {
			c.fail(fmt.Errorf("close: %w", err))
		}
	}
	c.links = nil
}

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
	firstFall := tcp && c.t.name != "tcp" && c.fellBack.Add(1) == 1
	if id == 1 || firstFall {
		c.mu.Lock()
		c.used = c.t.nature(conn, c.addr)
		c.mu.Unlock()
	}
	return conn, id, nil
}

// connectAtOnce is the number of set-up dials in flight: set-up is not
// measured, but a thousand dials one by one would hold up everybody.
const connectAtOnce = 16

// connect adds n connections. A message and its answer on each show that the
// server has it too.
func (c *client) connect(n int) {
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
				c.links = append(c.links, l)
				mu.Unlock()
				if c.w.Kind == oneWay {
					continue
				}
				if _, _, err := l.exchange(c.epoch); err != nil {
					c.fail(err)
					return
				}
				if c.w.Kind == idling {
					l.out, l.in = nil, nil // not to be weighed
				}
			}
		})
	}
	dialers.Wait()
}

// work does the workload for about d and returns how many operations that
// were.
func (c *client) work(d time.Duration) int64 {
	switch {
	case c.w.Kind == oneWay:
		return c.bursts(d)
	case c.w.Kind == openings:
		return c.openings(d)
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
