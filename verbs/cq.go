package verbs

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// CompChannel is a completion channel: where armed CQs announce that there
// is something to poll. Any number of CQs may share one.
type CompChannel struct {
	ctx *Context
	drv CompChannelDriver
}

// CreateCompChannel makes a completion channel.
func (c *Context) CreateCompChannel() (*CompChannel, error) {
	drv, err := c.drv.CreateCompChannel()
	if err != nil {
		return nil, c.wrap("create completion channel", err)
	}
	return &CompChannel{ctx: c, drv: drv}, nil
}

// Wait parks the goroutine until an armed CQ of this channel has an event,
// Wake was called, or the channel is closed (the error then wraps ErrClosed).
// At the deadline it returns an error that wraps os.ErrDeadlineExceeded; the
// zero time means none. It may return early for no reason: poll, and wait
// again. One goroutine at a time may wait.
func (ch *CompChannel) Wait(deadline time.Time) error { return ch.drv.Wait(deadline) }

// WaitThread is Wait, but blocks the operating system thread instead of
// parking the goroutine, where the device has CapThreadWait. It wakes in a
// third of the time and costs a thread: use it for short waits only.
func (ch *CompChannel) WaitThread(deadline time.Time) error { return ch.drv.WaitThread(deadline) }

// Wake ends the present, or else the next, Wait or WaitThread. It may be
// called from any goroutine.
func (ch *CompChannel) Wake() { ch.drv.Wake() }

// Close ends all waits and frees the channel.
func (ch *CompChannel) Close() error {
	err := ch.drv.Close()
	if errors.Is(err, ErrClosed) {
		return nil
	}
	return ch.ctx.wrap("close completion channel", err)
}

// CQAttr are the properties of a CQ.
type CQAttr struct {
	// CQE is the least number of completions that the CQ can hold, 1 to
	// DeviceAttr.MaxCQE. A
	// completion that finds it full is lost and breaks the CQ: count what
	// can arrive before you post.
	CQE int
	// Vector selects the completion vector (interrupt) of the device, 0 to
	// DeviceAttr.CompVectors-1.
	Vector int
	// Timestamps asks for WC.Timestamp, of a device with CapTimestamps. The software HCA reads
	// a clock for it: when a request of this process is done, and when an arrival is polled.
	Timestamps bool
	// SingleThreaded promises that no two calls of Poll, Arm and Disarm overlap
	// (IBV_CREATE_CQ_ATTR_SINGLE_THREADED). The QPs of which this is the SendCQ are to be
	// SingleThreaded, too. All else may be called at any time, PostSend as well, and what a broken
	// promise does is as there.
	SingleThreaded bool
}

// CQ is a completion queue.
type CQ struct {
	ctx  *Context
	drv  CQDriver
	ch   *CompChannel
	mu   sync.Mutex
	attr CQAttr // guarded by mu
}

// CreateCQ makes a completion queue; ch may be nil if it is only polled.
func (c *Context) CreateCQ(attr CQAttr, ch *CompChannel) (*CQ, error) {
	const op = "create CQ"
	if attr.CQE <= 0 || attr.CQE > c.attr.MaxCQE {
		return nil, c.wrap(op, fmt.Errorf("%w: %d entries, the device allows 1 to %d", ErrInvalid, attr.CQE, c.attr.MaxCQE))
	}
	if attr.Vector < 0 || attr.Vector >= max(1, c.attr.CompVectors) {
		return nil, c.wrap(op, fmt.Errorf("%w: completion vector %d, the device has %d", ErrInvalid, attr.Vector, max(1, c.attr.CompVectors)))
	}
	if attr.Timestamps && !c.attr.Caps.Has(CapTimestamps) {
		return nil, c.wrap(op, fmt.Errorf("%w: no timestamps", ErrUnsupported))
	}
	var chDrv CompChannelDriver
	if ch != nil {
		if ch.ctx != c {
			return nil, c.wrap(op, fmt.Errorf("%w: completion channel of another device", ErrInvalid))
		}
		chDrv = ch.drv
	}
	drv, err := charged(c, func() (CQDriver, error) { return c.drv.CreateCQ(&attr, chDrv) })
	if err != nil {
		return nil, c.wrap(op, err)
	}
	cq := &CQ{ctx: c, drv: drv, ch: ch, attr: attr}
	c.mu.Lock()
	c.cqs[drv] = cq
	c.mu.Unlock()
	return cq, nil
}

// Poll moves up to len(wcs) completions into wcs, oldest first, and returns
// how many. It allocates nothing and never blocks. Any goroutine may call it;
// each completion is given out once. An error means that the CQ itself is
// broken.
func (cq *CQ) Poll(wcs []WC) (int, error) {
	n, err := cq.drv.Poll(wcs)
	if t := cq.ctx.trace.Load(); t != nil && n > 0 {
		t.polled(cq.ctx, wcs[:n])
	}
	return n, err
}

// Arm asks for one event on the channel when the next completion arrives, or
// if solicited is set, when the next solicited or failed one arrives. A
// completion that arrived before Arm gives no event, so poll once more after
// it, before you wait. What is armed for any completion stays so until its event:
// asking for solicited ones meanwhile changes nothing. An event may come late, for a completion
// that was polled before, and uses up what was armed since: Arm anew before each wait.
func (cq *CQ) Arm(solicited bool) error { return cq.drv.Arm(solicited) }

// Disarm withdraws Arm as far as the device allows. It is a hint that saves
// the peer or the device an event; one may still come.
func (cq *CQ) Disarm() { cq.drv.Disarm() }

// Channel returns the completion channel, nil if there is none.
func (cq *CQ) Channel() *CompChannel { return cq.ch }

// Cap returns the number of completions that the CQ can hold.
func (cq *CQ) Cap() int {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	return cq.attr.CQE
}

// Resize changes the capacity to at least cqe entries. It fails with an error
// that wraps ErrInvalid if more completions wait than that, and with one that
// wraps ErrUnsupported on a device without CapResizeCQ.
func (cq *CQ) Resize(cqe int) error {
	const op = "resize CQ"
	if !cq.ctx.attr.Caps.Has(CapResizeCQ) {
		return cq.ctx.wrap(op, ErrUnsupported)
	}
	if cqe <= 0 || cqe > cq.ctx.attr.MaxCQE {
		return cq.ctx.wrap(op, fmt.Errorf("%w: %d entries, the device allows 1 to %d", ErrInvalid, cqe, cq.ctx.attr.MaxCQE))
	}
	cq.mu.Lock()
	defer cq.mu.Unlock()
	n, err := cq.drv.Resize(cqe)
	if err != nil {
		return cq.ctx.wrap(op, err)
	}
	cq.attr.CQE = n
	return nil
}

// Moderate holds back the event of an armed CQ until count completions wait for it, or until
// the period, in whole microseconds, is over since the first of them came: fewer
// wake-ups, for completions that are polled later. Device and
// process may give an event before that. With a count or a period of 0 nothing is held
// back any more, as when the CQ was made. The
// limits are DeviceAttr.MaxModerationCount and MaxModerationPeriod. The error wraps ErrInvalid
// beyond them, and ErrUnsupported on a device without CapModerateCQ.
func (cq *CQ) Moderate(count int, period time.Duration) error {
	const op = "moderate CQ"
	attr := &cq.ctx.attr
	d, ok := cq.drv.(ModerationDriver)
	if !ok || !attr.Caps.Has(CapModerateCQ) {
		return cq.ctx.wrap(op, ErrUnsupported)
	}
	if count < 0 || count > attr.MaxModerationCount {
		return cq.ctx.wrap(op, fmt.Errorf("%w: %d completions an event, the device allows 0 to %d", ErrInvalid, count, attr.MaxModerationCount))
	}
	if period < 0 || period > attr.MaxModerationPeriod || period%time.Microsecond != 0 {
		return cq.ctx.wrap(op, fmt.Errorf("%w: a period of %v, the device allows whole microseconds up to %v", ErrInvalid, period, attr.MaxModerationPeriod))
	}
	return cq.ctx.wrap(op, d.Moderate(count, period))
}

// Close destroys the CQ. The error wraps ErrBusy while QPs use it.
func (cq *CQ) Close() error {
	err := cq.drv.Destroy()
	if destroyed(err) {
		cq.ctx.mu.Lock()
		delete(cq.ctx.cqs, cq.drv)
		cq.ctx.mu.Unlock()
	}
	return cq.ctx.ended("destroy CQ", err)
}
