package uverbs

import (
	"fmt"
	"slices"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/internal/serial"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
)

// cq is a completion queue.
//
// The path of a poll: the driver's queue translates what the kernel has
// written, and each completion is looked up by the number of its QP, which
// counts it as done. A completion of a QP that is not here any more is
// dropped: the kernel leaves those of destroyed QPs where they are.
type cq struct {
	dev    *device
	id     uint64
	handle uint32
	ch     *channel       // nil: polled only
	events driver.EventCQ // the queue, or nil if it need not know of events
	end    ending

	mu    serial.Section
	queue driver.CQ      // guarded by mu, nil once destroyed
	qps   map[uint32]*qp // guarded by mu: by number, who may report here
	last  *qp            // guarded by mu: of qps, who reported last
	srqs  int            // guarded by mu: SRQs of XRC domains that report here
	kept  []verbs.WC     // guarded by mu: taken out of the queue already
	// stranded are completions of requests that were taken back from a QP
	// that has failed. They come after those in the queue. Guarded by mu.
	stranded []verbs.WC
	size     int                 // guarded by mu: completions that the queue holds
	broken   error               // guarded by mu: the memory is no queue any more
	lost     error               // guarded by mu: completions were lost
	notify   abi.PreparedCommand // guarded by mu
}

func (d *device) CreateCQ(attr *verbs.CQAttr, ch verbs.CompChannelDriver) (verbs.CQDriver, error) {
	c := &cq{dev: d, qps: make(map[uint32]*qp)}
	if attr.SingleThreaded {
		c.mu.Promise()
	}
	in := abi.CreateCQIn{CQE: uint32(attr.CQE), CompVector: uint32(attr.Vector), CompChannel: -1}
	if ch != nil {
		var ok bool
		if c.ch, ok = ch.(*channel); !ok || c.ch.dev != d {
			return nil, fmt.Errorf("%w: completion channel of another device", verbs.ErrInvalid)
		}
		fd, release, err := c.ch.hold()
		if err != nil {
			return nil, err
		}
		defer release()
		in.CompChannel = int32(fd)
	}
	var err error
	if c.id, err = d.add(c); err != nil {
		return nil, err
	}
	in.UserHandle = c.id
	if err := c.create(&in); err != nil {
		d.drop(c.id)
		return nil, err
	}
	attr.CQE = c.size
	return c, nil
}

func (c *cq) create(in *abi.CreateCQIn) error {
	c.mu.Lock() // Close of the device must not look at it half made
	defer c.mu.Unlock()
	made := false
	queue, err := c.dev.driver.CreateCQ(int(in.CQE), func(cqe int, u driver.Udata) error {
		in.CQE = uint32(cqe)
		var out abi.CreateCQOut
		err := c.dev.commandUdata(abi.CmdCreateCQ, abi.BytesOf(in), abi.BytesOf(&out), u)
		c.handle, c.size, made = out.Handle, int(int32(out.CQE)), err == nil
		return err
	})
	if err == nil {
		c.queue = queue
		if spare, ok := queue.(driver.ReservingCQ); ok {
			c.size = spare.Capacity()
		}
		if c.events, _ = queue.(driver.EventCQ); c.events != nil && c.ch != nil {
			c.ch.numbered.Store(true)
		}
		c.notify, err = c.dev.file.Prepare(abi.CmdReqNotifyCQ, abi.BytesOf(&abi.ReqNotifyCQIn{Handle: c.handle}), false)
	}
	if err == nil || !made {
		return err
	}
	c.dev.undo(c, c.destroyAtKernel, c.release)
	return err
}

func (c *cq) destroyAtKernel() error {
	return c.dev.command(abi.CmdDestroyCQ, abi.BytesOf(&abi.DestroyIn{Handle: c.handle}), abi.BytesOf(&abi.DestroyCQOut{}))
}

func (c *cq) Poll(wcs []verbs.WC) (n int, err error) {
	failed := false
	if c.mu.Promised {
		c.mu.Enter()
	} else {
		c.mu.Begin()
	}
	empty := false
	if c.isPlain() {
		if n, err = c.queue.Poll(wcs, c); n > 0 || err != nil {
			n, failed = c.count(wcs[:n])
		} else {
			empty = true
		}
	}
	if n == 0 && !empty {
		n, failed, err = c.take(wcs)
	}
	if c.mu.Promised {
		c.mu.Leave()
	} else {
		c.mu.Mutex.Unlock()
	}
	if failed {
		for i := range wcs[:n] {
			c.noteFailure(&wcs[i])
		}
	}
	return n, err
}

// isPlain reports whether there is nothing but the queue to look at. The caller holds mu.
func (c *cq) isPlain() bool {
	return c.queue != nil && len(c.kept)+len(c.stranded) == 0 && c.broken == nil && c.lost == nil && !c.dev.gone.Load()
}

// take moves completions into wcs. failed says that there are ones with an
// error among them. The caller holds mu.
func (c *cq) take(wcs []verbs.WC) (n int, failed bool, err error) {
	if c.queue == nil {
		return 0, false, verbs.ErrClosed
	}
	if len(c.kept) > 0 {
		n = copy(wcs, c.kept)
		c.kept = c.kept[:copy(c.kept, c.kept[n:])]
		n, failed = c.count(wcs[:n])
	}
	if c.broken != nil {
		return n, failed, errOnlyIf(n == 0, c.broken)
	}
	// Memory that is hostile may hold any number of completions of QPs that
	// are gone; one round through the queue is all that it gets.
	full := true
	for looked := 0; n < len(wcs) && looked <= c.size; {
		k, err := c.queue.Poll(wcs[n:], c)
		if err != nil {
			c.broken = err
			return n, failed, errOnlyIf(n == 0, err)
		}
		full = k == len(wcs)-n
		looked += k
		k, bad := c.count(wcs[n : n+k])
		n, failed = n+k, failed || bad
		if !full || k > 0 {
			break
		}
	}
	if !full && len(c.stranded) > 0 {
		k, bad := c.takeStranded(wcs[n:])
		n, failed = n+k, failed || bad
	}
	if n == 0 && len(wcs) > 0 {
		if c.dev.gone.Load() {
			return 0, false, errGone
		}
		return 0, false, c.lost
	}
	return n, failed, nil
}

var errOverrun = fmt.Errorf("%w: completion queue overrun", verbs.ErrQueueFull)

// overrun is called when the kernel has had no room for a completion. Those
// that are there can be polled, then Poll fails.
func (c *cq) overrun() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost = errOverrun
}

func errOnlyIf(is bool, err error) error {
	if is {
		return err
	}
	return nil
}

// count tells the QPs of their completions, and drops those of QPs that are
// gone, and of empty WRITEs of the core. Those of an SRQ of an XRC domain are no QP's. It returns
// how many stay, at the beginning of wcs.
func (c *cq) count(wcs []verbs.WC) (n int, failed bool) {
	for i := range wcs {
		if wcs[i].Flags&driver.OfXRC != 0 {
			wcs[i].Flags, wcs[i].SrcQPN = wcs[i].Flags&^driver.OfXRC, 0
			wcs[n] = wcs[i]
			n++
			continue
		}
		q := c.qp(wcs[i].QPN)
		if q == nil || wcs[i].ID == emptyWriteID {
			continue
		}
		if q.completed(&wcs[i]) {
			failed = true
			if q.fails(wcs[i].Status) {
				q.suspect.Store(true)
			}
		}
		if n != i {
			wcs[n] = wcs[i]
		}
		n++
	}
	return n, failed
}

// noteFailure looks after the QP of a completion with an error: receives that were
// posted while it failed may not have been flushed. Another one may have its number by now.
func (c *cq) noteFailure(wc *verbs.WC) {
	if wc.Status == verbs.WCSuccess {
		return
	}
	c.mu.Begin()
	q := c.qps[wc.QPN]
	c.mu.End()
	if q != nil && q.suspect.Load() {
		q.lookAfter()
	}
}

func (c *cq) Arm(solicited bool) error {
	if c.ch == nil {
		return fmt.Errorf("%w: the CQ has no completion channel", verbs.ErrInvalid)
	}
	c.mu.Begin()
	defer c.mu.End()
	if c.queue == nil {
		return verbs.ErrClosed
	}
	if c.dev.gone.Load() {
		return errGone
	}
	if c.queue.Arm(solicited) {
		return nil
	}
	c.notify.SetWord(1, uint32(flag(solicited)))
	if err := c.notify.Run(true); err != nil {
		return c.dev.failed("REQ_NOTIFY_CQ", err)
	}
	return nil
}

// Disarm has no counterpart at the kernel.
func (c *cq) Disarm() {}

func (c *cq) Resize(cqe int) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.queue == nil {
		return 0, verbs.ErrClosed
	}
	if len(c.kept) > cqe {
		return 0, fmt.Errorf("%w: more than %d completions wait", verbs.ErrInvalid, cqe)
	}
	size := 0
	err := c.queue.Resize(cqe, func(cqe int, u driver.Udata) error {
		var out abi.ResizeCQOut
		err := c.dev.commandUdata(abi.CmdResizeCQ, abi.BytesOf(&abi.ResizeCQIn{Handle: c.handle, CQE: uint32(cqe)}), abi.BytesOf(&out), u)
		size = int(int32(out.CQE))
		return err
	})
	if err != nil {
		if size > 0 {
			c.broken = err // the kernel writes into the new queue already
		}
		return 0, err
	}
	c.size = size
	if spare, ok := c.queue.(driver.ReservingCQ); ok {
		c.size = spare.Capacity()
	}
	return c.size, nil
}

func (c *cq) Moderate(count int, period time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.queue == nil {
		return verbs.ErrClosed
	}
	return c.dev.command(abi.CmdExModifyCQ, abi.BytesOf(&abi.ModifyCQIn{
		Handle: c.handle, AttrMask: abi.CQModerate, Count: uint16(count), Period: uint16(period / time.Microsecond),
	}), nil)
}

// Find is for completions that name a place in the queue of their QP. The
// caller holds mu.
func (c *cq) Find(num uint32) driver.QP {
	if q := c.qp(num); q != nil {
		return q.queue
	}
	return nil
}

// qp returns the QP with a number, nil if it is gone. The caller holds mu.
func (c *cq) qp(num uint32) *qp {
	if q := c.last; q != nil && q.num == num { // most CQs have one
		return q
	}
	q := c.qps[num]
	if q != nil {
		c.last = q
	}
	return q
}

// mapped returns the driver's queue, nil if it is gone.
func (c *cq) mapped() driver.CQ {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.queue
}

// gather takes completions out of the queue, for a QP that learns from them what
// is done. Whoever polls finds them first. It is called by PostSend, which may overlap with Poll.
func (c *cq) gather() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keep()
}

// keep is gather for those who hold mu.
func (c *cq) keep() {
	var wcs [16]verbs.WC
	for c.queue != nil && c.broken == nil && len(c.kept) < c.size {
		n, err := c.queue.Poll(wcs[:min(len(wcs), c.size-len(c.kept))], c)
		if err != nil {
			c.broken = err
		}
		if n == 0 {
			return
		}
		c.kept = append(c.kept, wcs[:n]...)
	}
}

// restart counts anew which of q's requests, of which it has posted so many, hold a slot
// when q comes from SQE: those whose completion nobody has polled, and those that the device
// has not yet flushed.
func (c *cq) restart(q *qp, posted uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keep()
	q.errorsBefore = q.ownDoorbell.Outstanding()
	unpolled := uint32(q.errorsBefore)
	for i := range c.kept {
		if wc := &c.kept[i]; wc.QPN == q.num && wc.Opcode < verbs.WCRecv {
			unpolled++
			if wc.Status != verbs.WCSuccess {
				q.errorsBefore++
			}
		}
	}
	q.sendDone.Store(posted - unpolled)
}

// attach makes q one of those who may report here.
func (c *cq) attach(q *qp) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.qps[q.num], c.last = q, nil
}

// attachSRQ counts an SRQ of an XRC domain that reports here.
func (c *cq) attachSRQ() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.srqs++
}

// detachSRQ drops the completions of an SRQ that nobody has polled, and unmaps the SRQ. The kernel
// has destroyed it. The driver knows its completions as long as it is mapped, so nobody polls in
// between; afterwards another SRQ may have its number.
func (c *cq) detachSRQ(num uint32, unmap func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop(func(wc *verbs.WC) bool { return wc.Flags&driver.OfXRC != 0 && wc.SrcQPN == num })
	unmap()
	c.srqs--
}

// purge drops the completions of q that nobody has polled, and q itself if it
// leaves. The kernel has stopped q.
func (c *cq) purge(q *qp, leaves bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop(func(wc *verbs.WC) bool { return wc.Flags&driver.OfXRC == 0 && wc.QPN == q.num })
	c.dropStranded(q)
	if c == q.sendCQ {
		q.errorsBefore = 0
	}
	if leaves && c.qps[q.num] == q {
		delete(c.qps, q.num)
		c.last = nil
	}
}

// drop drops the completions that nobody has polled and that are stale, and those of QPs that are
// not here. The others are kept, however many they are: none that is stale stays in the queue.
// The caller holds mu.
func (c *cq) drop(stale func(*verbs.WC) bool) {
	var kept []verbs.WC
	for i := range c.kept {
		if !stale(&c.kept[i]) {
			kept = append(kept, c.kept[i])
		}
	}
	var wcs [16]verbs.WC
	for looked := 0; c.queue != nil && c.broken == nil && looked <= c.size; {
		n, err := c.queue.Poll(wcs[:], c)
		if err != nil {
			c.broken = err
		}
		for i := range wcs[:n] {
			known := wcs[i].Flags&driver.OfXRC != 0 || c.qps[wcs[i].QPN] != nil
			if known && !stale(&wcs[i]) {
				kept = append(kept, wcs[i])
			}
		}
		if looked += n; n < len(wcs) {
			break
		}
	}
	c.kept = kept
}

// flushed adds completions of requests that the kernel did not flush. They
// come after all that the kernel has written, and wake whoever waits.
func (c *cq) flushed(qpn uint32, ids []uint64) {
	if len(ids) == 0 {
		return
	}
	c.mu.Lock()
	for _, id := range ids {
		c.stranded = append(c.stranded, verbs.WC{ID: id, QPN: qpn, Status: verbs.WCWRFlushErr})
	}
	c.mu.Unlock()
	if c.ch != nil {
		c.ch.Wake()
	}
}

// takeStranded moves such completions into wcs. The caller holds mu, and has
// found the queue empty.
func (c *cq) takeStranded(wcs []verbs.WC) (n int, failed bool) {
	n = copy(wcs, c.stranded)
	c.stranded = c.stranded[:copy(c.stranded, c.stranded[n:])]
	return c.count(wcs[:n])
}

// dropStranded drops those of q. The caller holds mu.
func (c *cq) dropStranded(q *qp) {
	c.stranded = slices.DeleteFunc(c.stranded, func(wc verbs.WC) bool { return wc.QPN == q.num })
}

// room is how many of n requests of a failed QP may still be taken: one that
// posts and never polls must not fill the memory.
func (c *cq) room(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return max(0, min(n, c.size-len(c.stranded)))
}

func (c *cq) Destroy() error {
	return c.end.once(func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.queue == nil {
			return verbs.ErrClosed
		}
		if len(c.qps)+c.srqs > 0 {
			return verbs.ErrBusy
		}
		err := c.destroyAtKernel()
		if !destroyed(err) {
			return err
		}
		c.release()
		c.dev.drop(c.id) // after that: Close of the device waits for what is on the list
		return err
	})
}

// release unmaps the queue. The caller holds mu.
func (c *cq) release() {
	if c.queue != nil {
		c.queue.Unmap()
		c.queue, c.kept, c.stranded = nil, nil, nil
	}
	c.notify.Free()
}

func (c *cq) abandon() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.release()
}
