package harness

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// openings opens connections for d, as many at a time as the workload says,
// and returns how many. An opening is a dial, one message and its answer,
// which shows that the server has the connection and can use it, and the
// close of this side. Its latency covers all of that.
func (c *client) openings(d time.Duration) int64 {
	var opened atomic.Int64
	var workers sync.WaitGroup
	until := time.Since(c.epoch) + d
	for i := range c.w.Conns {
		workers.Go(func() {
			n, err := c.openUntil(until, c.lats[i])
			opened.Add(n)
			if err != nil {
				c.fail(err)
			}
		})
	}
	workers.Wait()
	return opened.Load()
}

func (c *client) openUntil(until time.Duration, latency *recorder) (opened int64, err error) {
	l := newLink(nil, 0, c.w.Size, latency)
	for {
		began := time.Since(c.epoch)
		conn, id, err := c.dial()
		if err != nil {
			return opened, fmt.Errorf("dial: %w", err)
		}
		l.conn, l.next = conn, firstNumber(id)
		_, _, err = l.exchange(c.epoch)
		if closeErr := conn.Close(); err == nil && closeErr != nil {
			err = fmt.Errorf("close: %w", closeErr)
		}
		if err != nil {
			return opened, err
		}
		now := time.Since(c.epoch)
		latency.record(now - began)
		opened++
		if now >= until {
			return opened, nil
		}
	}
}
