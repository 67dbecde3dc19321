package main

import (
	"fmt"
	"io"
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

// openLoop sends for d at the workload's rate. What is still due when d is
// over is not sent: the rate that was reached tells.
func (c *client) openLoop(d time.Duration) int64 {
	s := schedule{
		start:    time.Since(c.epoch),
		interval: float64(time.Second) / c.w.Rate,
		links:    len(c.links),
	}
	next := make([]uint64, len(c.links))
	for i, l := range c.links {
		next[i] = l.next
	}
	var pacer sync.WaitGroup
	pacer.Go(func() { c.pace(s, s.start+d, next) })
	// Each reader ends with the last message, which the pacer sends on every
	// link, or with the connection that the pacer closes on an error.
	ops := c.eachLink(func(i int, l *link) error { return c.readPaced(s, i, l) })
	pacer.Wait()
	return ops
}

// pace writes all messages, the last ones flagged. It has the links' out to
// itself, and in next the number of each link's next message; the readers
// have the rest.
func (c *client) pace(s schedule, until time.Duration, next []uint64) {
	timer := newSleeper()
	defer timer.close()
	send := func(i int, flags uint64) {
		l := c.links[i]
		stamp(l.out, next[i], flags)
		next[i]++
		if _, err := l.conn.Write(l.out); err != nil {
			l.conn.Close() // ends the reader, which counts the failure
		}
	}
	for k := int64(0); ; k++ {
		for i := range c.links {
			due := s.due(i, k)
			if due >= until || !c.waitUntil(due, until, timer) {
				for i := range c.links {
					send(i, lastMessage)
				}
				return
			}
			send(i, 0)
		}
	}
}

// waitUntil returns at due, or at once if that has passed, and notes how late
// it is. It reports false when the time is already beyond until.
func (c *client) waitUntil(due, until time.Duration, timer *sleeper) bool {
	for {
		now := time.Since(c.epoch)
		if now >= until {
			return false
		}
		if now >= due {
			c.late.record(now - due)
			return true
		}
		timer.sleep(due - now)
	}
}

func (c *client) readPaced(s schedule, i int, l *link) error {
	for k := int64(0); ; k++ {
		if _, err := io.ReadFull(l.conn, l.in); err != nil {
			return fmt.Errorf("read: %w", err)
		}
		answered := time.Since(c.epoch)
		if err := check(l.in, l.next); err != nil {
			return err
		}
		l.next++
		if _, last := number(l.in); last != 0 {
			return nil
		}
		l.latency.record(answered - s.due(i, k))
		l.ops++
		l.last = answered
	}
}

// lastAnswer is the time of the latest answer on any link, or end if none
// came after it: the rate of an open loop counts to there, and not to the end
// of the messages that only tell the readers to stop.
func (c *client) lastAnswer(end time.Duration) time.Duration {
	for _, l := range c.links {
		end = max(end, l.last)
	}
	return end
}
