package soft

import (
	"errors"
	"math"
	"os"
	"sync/atomic"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/protocol"
)

// Limits of moderation: those of the kernel's interface.
const (
	maxModerationCount  = math.MaxUint16
	maxModerationPeriod = math.MaxUint16 * time.Microsecond
)

// moderation is when an event of a CQ is due. Zero is at once.
type moderation struct {
	count  atomic.Int64
	period atomic.Int64 // a time.Duration
}

// get returns a period of 0 where nothing is held back.
func (m *moderation) get() (count int, period time.Duration) {
	if count = int(m.count.Load()); count > 0 {
		period = time.Duration(m.period.Load())
	}
	return count, period
}

// Moderate is heeded by the waits on the channel: a peer wakes us for the first completion, as
// always. The wait then arms the CQ again and goes on, so each further completion is a
// wake-up for it, but not for the program.
func (c *cq) Moderate(count int, period time.Duration) error {
	if c.users.closed() {
		return verbs.ErrClosed
	}
	c.moderation.count.Store(int64(count))
	c.moderation.period.Store(int64(period))
	if c.ch != nil && count > 1 && period > 0 {
		c.ch.moderated.Store(true)
	}
	return nil
}

// holdBack goes on with a wait that an event has ended, until an event is due: Wake, a CQ
// with as many completions as it waits for, or the end of the first period.
func (ch *channel) holdBack(deadline time.Time, wait func(*channel, time.Time) error) error {
	for {
		if ch.interrupted.Swap(false) {
			return nil
		}
		period, err := ch.collect()
		if err != nil || period == 0 {
			return err
		}
		if end := time.Now().Add(period); deadline.IsZero() || end.Before(deadline) {
			deadline = end
		}
		switch err := wait(ch, deadline); {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil // there are completions, if fewer than was asked for
		case err != nil:
			return err
		}
	}
}

// collect arms the CQs of the channel in which too few completions wait for an event, and
// returns the shortest of their periods: 0 if one has enough, or none has any.
func (ch *channel) collect() (shortest time.Duration, _ error) {
	for _, c := range ch.dev.allCQs() {
		if c.ch != ch || c.lockedWaiting(1) == 0 {
			continue
		}
		count, period := c.moderation.get()
		if period == 0 {
			return 0, nil
		}
		if err := c.Arm(false); err != nil || c.lockedWaiting(count) >= count {
			return 0, err
		}
		if shortest == 0 || period < shortest {
			shortest = period
		}
	}
	return shortest, nil
}

// lockedWaiting is waiting for those who do not hold pollMu. A CQ that is broken or closed has none:
// Poll is to say so.
func (c *cq) lockedWaiting(enough int) int {
	if c.users.closed() || c.local.broken.Load() {
		return 0
	}
	c.pollMu.Lock()
	defer c.pollMu.Unlock()
	return c.waiting(enough)
}

// waiting counts the completions that could be polled, until there are enough: each piece of a
// long SEND as one, and of a QP that has failed one of all that it will flush. The caller holds pollMu.
func (c *cq) waiting(enough int) int {
	n := int(c.local.waiting.Load())
	for _, in := range *c.all.Load() {
		n += in.arrived(enough - n)
		if in.attention.Load() {
			n++
		}
	}
	return n
}

// arrived counts the descriptors that are published, up to most.
func (in *inbound) arrived(most int) (n int) {
	ring := in.seg.Ring
	for pos, i := in.pos, in.index; n < most && i < uint32(len(ring)) && ring[i].Seq.Load() == uint32(pos)+1; pos++ {
		n++
		next := i + 1
		if ring[i].Flags&protocol.FlagElsewhere != 0 {
			next = ring[i].Next
		}
		i = next
	}
	return n
}
