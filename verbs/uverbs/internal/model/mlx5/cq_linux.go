//go:build amd64 || arm64

package mlx5

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/fabric"
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
	answered      uint32 // number of the arm that the last event was for; noCommand before
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
//
// An arm has a number of two bits, which drivers change with each event that they read (of libmlx5 cq.c,
// mlx5_cq_event). How a device compares it is not documented in public either; at its worst it takes an
// arm with the number of one that it has answered for the same.
func (c *completionQueue) arm(command uint32) {
	if command == c.command {
		return
	}
	c.command = command
	if armNumber(command) == c.answered {
		return
	}
	c.armed, c.onlySolicited = true, command&armOnlySolicited != 0
	seen := c.produced - (c.produced-command)&0xffffff // the command has 24 bits of it
	if int32(c.notified-seen) > 0 {
		seen = c.notified
	}
	c.seen = seen
	c.notify(seen, false)
}

func armNumber(command uint32) uint32 { return command >> 28 & 3 }

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
	c.answered = armNumber(c.command)
	c.notified = c.produced
	c.events++
	c.context.device.Fabric().Counted.Events++
	if !c.channel.Send(le.AppendUint64(nil, c.user)) {
		c.context.device.Fabric().Violation("CQ %#x: its completion channel is full", c.cqn)
	}
}

// put writes a CQE, or holds it back if the devices are hostile.
func (c *completionQueue) put(e completion) {
	if c.context.device.Fabric().Hostile != nil {
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
		e.timestamp = c.context.device.tick()
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
	c.context.device.Fabric().Counted.Completions++
	if e.solicited || e.op == cqeRequestError || e.op == cqeResponseError {
		c.solicited, c.anySolicited = c.produced, true
	}
	c.notify(before, false)
}

// look reads how far the driver has consumed.
func (c *completionQueue) look() {
	var record [4]byte
	_ = c.context.memory.Read(c.record, record[:])
	if record[0] != 0 {
		c.context.device.Fabric().Violation("CQ %#x: its doorbell record is %#x, and indices have 24 bits", c.cqn, record)
	}
	c.consumed = c.produced - (c.produced-be.Uint32(record[:]))&0xffffff
}

func (c *completionQueue) overrun() {
	c.dead = true
	c.context.device.Fabric().Logf("CQ %#x has overrun", c.cqn)
	c.asyncEvents++
	c.context.event(fabric.EventCQError, c.user)
	for _, q := range c.context.qps {
		if q.sendCQ == c || q.recvCQ == c {
			q.State = fabric.StateError
			q.Event(fabric.EventQPFatal)
		}
	}
}

// A completion channel is an object by its descriptor in the program, which has handles of
// its own.
type channelFD int

func (c *ucontext) createChannel(r *frame.Request) unix.Errno {
	channel, err := frame.NewChannel()
	if err != nil {
		return unix.EMFILE // uverbs_cmd.c, ib_uverbs_create_comp_channel: core/rdma_core.c, alloc_begin_fd_uobject
	}
	fd, errno := r.Give(channel.FD())
	if errno != 0 {
		channel.Close()
		return errno
	}
	c.setChannel(channelFD(fd), channel)
	return r.Answer(words(uint32(fd)), nil)
}

const channelHandles = 1 << 31

func (c *ucontext) setChannel(fd channelFD, channel *frame.Channel) {
	handle := channelHandles | uint32(fd)
	if old, ok := lookup[*frame.Channel](c, handle); ok {
		old.Close() // the program has closed its descriptor, or the number would not be free
	}
	c.objects[handle] = channel
}

func (c *ucontext) createCQ(r *frame.Request) unix.Errno {
	const (
		least         = 22     // of struct mlx5_ib_create_cq: without flags
		pageFlag      = 1 << 1 // UAR_PAGE_INDEX
		realTimeFlag  = 1 << 2 // REAL_TIME_TS
		knownFlags    = 1<<0 | pageFlag | realTimeFlag
		paddingFlag   = 1 << 0 // CQE_128B_PAD
		compress      = 1
		sizeOfRequest = 32
	)
	b := r.Core
	entries := le.Uint32(b[16:])
	if len(r.Driver) < least {
		return unix.EINVAL // cq.c, create_cq_user
	}
	m := make([]byte, sizeOfRequest)
	copy(m, r.Driver)
	flags := le.Uint16(m[22:])
	var u *uar
	switch {
	case flags&pageFlag != 0:
		u = c.uarOfPage(uint32(le.Uint16(m[24:])))
	case c.static != nil:
		u = c.static[0]
	}
	switch size := le.Uint32(m[16:]); {
	case entries == 0 || entries > maxCQE:
		return unix.EINVAL // uverbs_cmd.c, create_cq; cq.c, mlx5_ib_create_cq
	case le.Uint32(b[20:]) >= vectors:
		return unix.EINVAL // uverbs_cmd.c, create_cq: completion vectors
	case flags&^knownFlags != 0:
		return unix.EINVAL // cq.c, create_cq_user
	case size != 64 && size != 128 || le.Uint16(m[26:]) != 0 || le.Uint32(m[28:]) != 0:
		return unix.EINVAL // the same, also reserved0 and reserved1
	case m[20] == compress || flags&paddingFlag != 0:
		return unix.EOPNOTSUPP // the same: the device has neither
	case size != 64:
		return unix.EOPNOTSUPP // the model has no CQEs of 128 bytes
	case u == nil:
		return unix.EINVAL // cq.c, create_cq_user: a page that is another's is refused by the firmware
	}
	q := &completionQueue{context: c, user: le.Uint64(b[8:]), size: roundUp(entries + 1),
		buffer: le.Uint64(m), record: le.Uint64(m[8:]), command: noCommand, answered: noCommand, uar: u,
		realTime: flags&realTimeFlag != 0}
	if fd := int32(le.Uint32(b[24:])); fd >= 0 {
		var ok bool
		if q.channel, ok = lookup[*frame.Channel](c, channelHandles|uint32(fd)); !ok {
			return unix.EBADF // uverbs_cmd.c, ib_uverbs_lookup_comp_file: uobj_get_read of a descriptor
		}
	}
	if !c.writable(q.buffer, uint64(q.size)*cqeSize) || c.memory.Write(q.record+4, words(noCommand)) != nil {
		return unix.EFAULT // core/umem.c, ib_umem_get
	}
	if misplaced(q.buffer, pageSize, q.record) {
		return unix.EINVAL // cq.c, create_cq_user
	}
	q.cqn = c.device.Next()
	q.handle = c.add(q)
	c.cqs = append(c.cqs, q)
	return r.Answer(words(q.handle, q.size-1), words(q.cqn, 0))
}

// resizeCQ is cq.c, mlx5_ib_resize_cq. The device writes a CQE that says so to the old buffer,
// and goes on in the new one behind it; the driver takes over those between.
func (c *ucontext) resizeCQ(r *frame.Request) unix.Errno {
	b, m := r.Core, r.Driver
	q, ok := lookup[*completionQueue](c, le.Uint32(b[8:]))
	entries := le.Uint32(b[12:])
	if !ok || entries < 1 || entries > maxCQE {
		return unix.EINVAL // uverbs_cmd.c, ib_uverbs_resize_cq; cq.c, mlx5_ib_resize_cq
	}
	size := roundUp(entries + 1)
	if size == q.size {
		return r.Answer(words(size-1, 0), nil)
	}
	const room = 16 // struct mlx5_ib_resize_cq
	switch {
	case len(m) < room || le.Uint16(m[10:]) != 0 || le.Uint32(m[12:]) != 0:
		return unix.EINVAL // cq.c, resize_user
	case le.Uint16(m[8:]) != cqeSize:
		return unix.EINVAL // the firmware
	case !c.writable(le.Uint64(m), uint64(size)*cqeSize):
		return unix.EFAULT // core/umem.c, ib_umem_get
	case misplaced(le.Uint64(m), pageSize, q.record):
		return unix.EINVAL // cq.c, mlx5_ib_resize_cq
	}
	q.release()
	q.look()
	if used := q.produced - q.consumed; q.dead || used+1 >= size || used >= q.size {
		return unix.EINVAL // the firmware: MODIFY_CQ has no room for what is there
	}
	q.write(completion{op: cqeResize})
	q.buffer, q.size = le.Uint64(m), size
	return r.Answer(words(size-1, 0), nil)
}

// modifyCQ is uverbs_cmd.c, ib_uverbs_ex_modify_cq, and cq.c, mlx5_ib_modify_cq.
func (c *ucontext) modifyCQ(r *frame.Request) unix.Errno {
	const moderate = 1 // IB_CQ_MODERATE
	b := r.Core
	if len(b) < 16 {
		return unix.ENOSPC // core/uverbs_main.c, verify_hdr
	}
	mask, count, period := le.Uint32(b[4:]), le.Uint16(b[8:]), le.Uint16(b[10:])
	q, ok := lookup[*completionQueue](c, le.Uint32(b))
	switch {
	case mask == 0 || le.Uint32(b[12:]) != 0:
		return unix.EINVAL // ib_uverbs_ex_modify_cq
	case mask > moderate:
		return unix.EOPNOTSUPP // the same
	case !ok || period > maxModerationPeriod:
		return unix.EINVAL // the same; mlx5_ib_modify_cq
	}
	q.count, q.period = uint32(count), time.Duration(period)*time.Microsecond
	return 0
}

func (c *ucontext) destroyCQ(r *frame.Request) unix.Errno {
	q, ok := lookup[*completionQueue](c, le.Uint32(r.Core[8:]))
	if !ok {
		return unix.ENOENT // core/rdma_core.c, lookup_get_idr_uobject
	}
	if c.inUse(q.users > 0) {
		return unix.EBUSY // core/verbs.c, ib_destroy_cq_user
	}
	if q.channel != nil { // what was not read is not waited for
		q.events -= uint32(q.channel.Remove(func(b []byte) bool { return le.Uint64(b) == q.user }))
	}
	q.asyncEvents -= c.unread(q.user, fabric.EventCQError)
	c.past[q.cqn] = true
	delete(c.objects, q.handle)
	c.cqs = without(c.cqs, q)
	return r.Answer(words(q.events, q.asyncEvents), nil)
}
