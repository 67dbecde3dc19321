package harness

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// An open loop sends at set times, whether or not earlier messages have been
// answered, as users do. One goroutine, the pacer, writes message i at
// i/rate after the start, on the connections in turn; a goroutine for each
// connection reads the answers. The latency of an answer runs from the time
// at which its message was due, so that a stall is charged to every message
// that should have gone out in it, not only to the one it hit.
type schedule struct {
	start    time.Duration // since the client's epoch
	interval float64       // nanoseconds between messages
	links    int           // message i goes to link i modulo links
}

// due is when message k of link i is to be written.
func (s schedule) due(i int, k int64) time.Duration {
	return s.start + time.Duration(float64(k*int64(s.links)+int64(i))*s.interval)
}

// schedule is that of this process from now on. Each client process has its
// share of the rate, and their messages are due in turn, as those of the
// connections are.
func (c *client) schedule(links int) schedule {
	interval := float64(time.Second) / c.w.Rate
	return schedule{
		start:    time.Since(c.epoch) + time.Duration(float64(c.w.Client)*interval),
		interval: interval * float64(c.w.clients()),
		links:    links,
	}
}

// drainTime is how long the readers of an open loop wait for the last answers.
const drainTime = 2 * time.Second

// openLoop sends for d at the workload's rate. What is still due when d is
// over is not sent, but for the first message: the rate that was reached tells.
func (c *client) openLoop(d time.Duration) int64 {
	s := c.schedule(len(c.links))
	next := make([]uint64, len(c.links))
	for i, l := range c.links {
		next[i] = l.next
	}
	c.answered.Store(0)
	var sent int64
	var pacer sync.WaitGroup
	until := time.Since(c.epoch) + d
	pacer.Go(func() {
		sent = c.pace(s, until, next)
		c.endReaders(sent)
	})
	ops := c.eachLink(func(i int, l *link) error { return c.readPaced(s, i, l) })
	pacer.Wait()
	for _, l := range c.links {
		c.latest = max(c.latest, l.last)
	}
	if ops != sent {
		c.fail(fmt.Errorf("%d of %d messages were not answered", sent-ops, sent))
	}
	return ops
}

// pace writes all messages and returns how many. It has the links' out to
// itself, and in next the number of each link's next message; the readers
// have the rest.
func (c *client) pace(s schedule, until time.Duration, next []uint64) (sent int64) {
	timer := newSleeper()
	defer timer.close()
	for k := int64(0); ; k++ {
		for i, l := range c.links {
			due := s.due(i, k)
			if due >= until || !c.waitUntil(due, until, sent == 0, timer) {
				return sent
			}
			stamp(l.out, next[i], 0)
			next[i]++
			if _, err := l.conn.Write(l.out); err != nil {
				c.fail(fmt.Errorf("write: %w", err))
				return sent
			}
			sent++
		}
	}
}

// endReaders waits until as many messages are answered as were sent, or for
// drainTime, and then lets the deadline of each connection pass.
func (c *client) endReaders(sent int64) {
	for end := time.Since(c.epoch) + drainTime; c.answered.Load() < sent && time.Since(c.epoch) < end; {
		time.Sleep(time.Millisecond)
	}
	for _, l := range c.links {
		if err := l.conn.SetReadDeadline(time.Unix(1, 0)); err != nil {
			l.conn.Close()
		}
	}
}

// waitUntil returns at due, or at once if that has passed, and notes how late
// it is. It reports false when the time is already beyond until, unless it is
// the first to be due: however late the machine lets us go on, there are figures.
func (c *client) waitUntil(due, until time.Duration, first bool, timer *sleeper) bool {
	for {
		now := time.Since(c.epoch)
		if now >= until && !first {
			return false
		}
		if now >= due {
			c.late.record(now - due)
			return true
		}
		timer.sleep(due - now)
	}
}

// readPaced reads the answers on link i until endReaders says that there are
// no more.
func (c *client) readPaced(s schedule, i int, l *link) error {
	for k := int64(0); ; k++ {
		_, err := io.ReadFull(l.conn, l.in)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return l.conn.SetReadDeadline(time.Time{})
		}
		if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		answered := time.Since(c.epoch)
		if err := check(l.in, l.next); err != nil {
			return err
		}
		l.next++
		l.latency.record(answered - s.due(i, k))
		l.ops++
		l.last = answered
		c.answered.Add(1)
	}
}
