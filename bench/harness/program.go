package harness

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"
)

// Program is a program that people have, or what it is made of: calls that a
// client makes of a server and that the server answers. It knows nothing of
// transports but what net.Listener and net.Conn tell.
type Program struct {
	Name  string // as in the names of the tests, a letter and digits
	Title string // as in the table

	// Serve answers the calls that come over the connections of ln, until stop
	// is called. It does not wait: it leaves that to goroutines of its own,
	// which tell fail of what goes wrong.
	Serve func(ln net.Listener, fail func(error)) (stop func(), err error)

	// Connect opens whatever calls calls at a time need, so that no call dials.
	Connect func(dial Dial, calls int) (Client, error)
}

// Dial opens a connection to the server.
type Dial func(context.Context) (net.Conn, error)

// Client is the calling end of a program.
type Client interface {
	// Call sends message, and puts what the server sends back into answer,
	// which is as long. Caller, from 0 to the number of calls at a time, does
	// one call after the other; callers do not wait for each other.
	Call(caller int, message, answer []byte) error
	// Close closes the connections. No call is under way.
	Close() error
}

// programs that a workload can name.
var programs = []Program{http1, http2, netRPC, readerLoop}

func programByName(name string) (Program, error) {
	for _, p := range programs {
		if p.Name == name {
			return p, nil
		}
	}
	return Program{}, fmt.Errorf("unknown program %q", name)
}

// connectProgram gives the client a link for each call at a time, and shows by
// one call that the server answers.
func (c *client) connectProgram(calls int) {
	p, err := programByName(c.w.Program)
	if err != nil {
		c.fail(err)
		return
	}
	dial := func(context.Context) (net.Conn, error) {
		conn, _, err := c.dial()
		return conn, err
	}
	if c.program, err = p.Connect(dial, calls); err != nil {
		c.program = nil
		c.fail(fmt.Errorf("connect: %w", err))
		return
	}
	for i := range calls {
		l := newLink(nil, i+1, c.w.Size, c.lats[i])
		l.call = func(out, in []byte) error { return c.program.Call(i, out, in) }
		l.think = c.w.Think
		c.links = append(c.links, l)
	}
	c.eachLink(func(_ int, l *link) error {
		_, _, err := l.exchange(c.epoch)
		return err
	})
}

func (c *client) closeProgram() {
	if c.program == nil {
		return
	}
	if err := c.program.Close(); err != nil {
		c.fail(fmt.Errorf("close: %w", err))
	}
	c.program = nil
}

// pacedCalls makes calls for d at the workload's rate. One goroutine, the
// pacer, hands out the times at which calls are due to as many callers as
// there may be calls at a time. If none is free the call waits, and the wait
// counts: its latency runs from the time at which it was due. What waits
// still when d is over is not called, but for the first one.
func (c *client) pacedCalls(d time.Duration) int64 {
	s, until := c.schedule(1), time.Since(c.epoch)+d
	due := make(chan time.Duration, dueCalls)
	var pacer sync.WaitGroup
	pacer.Go(func() {
		defer close(due)
		timer := newSleeper()
		defer timer.close()
		for k := int64(0); ; k++ {
			at := s.due(0, k)
			if at >= until || !c.waitUntil(at, until, k == 0, timer) {
				return
			}
			due <- at // taken by a caller, which is there until close
		}
	})
	ops := c.eachLink(func(_ int, l *link) error { return c.callWhenDue(due, s.start, until, l) })
	for range due { // none, unless all callers have failed
	}
	pacer.Wait()
	for _, l := range c.links {
		c.latest = max(c.latest, l.last)
	}
	return ops
}

// dueCalls is how many calls may wait for a caller before the pacer does.
const dueCalls = 1024

func (c *client) callWhenDue(due <-chan time.Duration, first, until time.Duration, l *link) error {
	for at := range due {
		if at > first && time.Since(c.epoch) >= until {
			continue
		}
		_, answered, err := l.exchange(c.epoch)
		if err != nil {
			return err
		}
		l.latency.record(answered - at)
		l.ops++
		l.last = answered
	}
	return nil
}
