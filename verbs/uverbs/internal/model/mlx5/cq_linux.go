//go:build amd64 || arm64

package mlx5

import (
	"time"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/frame"
)

// A completionQueue is a ring of CQEs in the program's memory. Its doorbell record has the
// consumer's index, and the driver's last arm command.
type completionQueue struct {
	context     *ucontext
	handle, cqn uint32
	uar         *uar
	user        uint64 // the handle that events name
	buffer      uint64
	record      uint64
	size        uint32 // entries, a power of two
	users       int    // QPs
	dead        bool   // overrun
	realTime    bool   // its time is to be the real one, which the device does not have

	produced     uint32
	consumed     uint32 // as last read
	solicited    uint32 // index after the last CQE that a solicited arm waits for; valid if anySolicited
	anySolicited bool

	channel       *frame.Channel
	notified      uint32 // produced at the last event
	events        uint32 // sent
	asyncEvents   uint32
	held          []completion // see Hostile
	armed         bool
	onlySolicited bool
	command       uint32 // the arm record as last seen
	seen          uint32 // index that the driver, or the last event, has told of

	// MODIFY_CQ: an event waits for so many CQEs, or for the period. 0 is neither.
	count  uint32
	period time.Duration
	due    time.Time // of the event that is held back, zero if there is none
}

const (
	armOnlySolicited = 1 << 24
	// noCommand is what the model writes to the arm record when a CQ is made. The first
	// arm of a CQ may be 0, which is what the driver has put there.
	noCommand = ^uint32(0)
)

// arm takes an arm command from the record. An arm is with the index up to which
// the driver has seen the CQ: if there is more, the event is due at once, unless an event
// has told of it. Most programs arm before they poll, and would be woken twice by
// each CQE. That the device knows what it has told follows from the CQ context's
// last_notified_index (include/linux/mlx5/mlx5_ifc.h, struct mlx5_ifc_cqc_bits); how it
// uses that is not documented in public.
func (c *completionQueue) arm(command uint32) {
	if command == c.command {
		return
	}
	c.command = command
	c.armed, c.onlySolicited = true, command&armOnlySolicited != 0
	seen := c.produced - (c.produced-command)&0xffffff // the command has 24 bits of it
	if int32(c.notified-seen) > 0 {
		seen = c.notified
	}
	c.seen = seen
	c.notify(seen, false)
}

// holdsBack says that an event has to wait for more CQEs, or for the period's end.
func (c *completionQueue) holdsBack() bool {
	if c.count == 0 || c.period == 0 || c.produced-c.seen >= c.count {
		return false
	}
	if c.due.IsZero() {
		c.due = time.Now().Add(c.period)
	}
	return true
}

// sendOverdue sends the event whose period is over, and says whether there was one.
func (c *completionQueue) sendOverdue(now time.Time) bool {
	if c.due.IsZero() || now.Before(c.due) {
		return false
	}
	c.due = time.Time{}
	c.notify(c.seen, true)
	return true
}

// notify sends the event if the CQ is armed and has a CQE at or after the index.
func (c *completionQueue) notify(seen uint32, overdue bool) {
	end := c.produced
	if c.onlySolicited {
		if !c.anySolicited {
			return
		}
		end = c.solicited
	}
	if !c.armed || c.channel == nil || int32(end-seen) <= 0 || !overdue && c.holdsBack() {
		return
	}
	c.armed, c.due = false, time.Time{}
	c.notified = c.produced
	c.events++
	c.context.device.fabric.stats.Events++
	if !c.channel.Send(le.AppendUint64(nil, c.user)) {
		c.context.device.fabric.violation("CQ %#x: its completion channel is full", c.cqn)
	}
}

// put writes a CQE, or holds it back if the devices are hostile.
func (c *completionQueue) put(e completion) {
	if c.context.device.fabric.Hostile != nil {
		c.held = append(c.held, e)
		return
	}
	c.write(e)
}

// release writes what is held back. That is due before a QP is destroyed or reset: its driver
// then takes its CQEs from the CQ.
func (c *completionQueue) release() {
	for _, e := range c.held {
		c.write(e)
	}
	c.held = c.held[:0]
}

// write writes a CQE. A CQ without room is broken (mlx5: a CQ error event), and so are its QPs.
func (c *completionQueue) write(e completion) {
	if c.dead {
		if e.written != nil {
			e.written() // it never will be; nobody waits for it
		}
		return
	}
	memory := c.context.memory
	if c.produced-c.consumed >= c.size {
		c.look()
		if c.produced-c.consumed >= c.size {
			c.overrun()
			return
		}
	}
	if e.op != cqeRequestError && e.op != cqeResponseError {
		e.timestamp = clock()
	}
	owner := byte(0)
	if c.produced&c.size != 0 {
		owner = 1
	}
	_ = memory.WriteLast(c.buffer+uint64(c.produced&(c.size-1))*cqeSize, e.encode(owner))
	if e.written != nil {
		e.written()
	}
	before := c.produced
	c.produced++
	c.context.device.fabric.stats.Completions++
	if e.solicited || e.op == cqeRequestError || e.op == cqeResponseError {
		c.solicited, c.anySolicited = c.produced, true
	}
	c.notify(before, false)
}

// look reads how far the driver has consumed.
func (c *completionQueue) look() {
	var record [4]byte
	_ = c.context.memory.Read(c.record, record[:])
	c.consumed = c.produced - (c.produced-be.Uint32(record[:]))&0xffffff
}

func (c *completionQueue) overrun() {
	c.dead = true
	c.context.device.fabric.logf("CQ %#x has overrun", c.cqn)
	c.asyncEvents++
	c.context.event(eventCQError, c.user)
	for _, q := range c.context.qps {
		if q.sendCQ == c || q.recvCQ == c {
			q.state = stateError
			q.event(eventQPFatal)
		}
	}
}
