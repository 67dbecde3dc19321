package soft

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/internal/serial"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/protocol"
)

// cq is a completion queue. Completions of receives are not stored: they are
// the published descriptors of the QPs that receive here, and Poll turns them
// into work completions. Only what this process itself completes (sends,
// flushed requests) lies in the local queue.
//
// The path of a poll: one load per QP says whether its next descriptor is
// published, one load whether anything local waits. Only if so it enters
// pollMu.
type cq struct {
	// work counts local completions and inbounds that want attention.
	work atomic.Int64
	// single is the only inbound, nil if there are none or several.
	single atomic.Pointer[inbound]
	// all are the inbounds; the slice is replaced, never changed.
	all atomic.Pointer[[]*inbound]

	dev   *device
	ch    *channel      // nil: polled only
	users users         // QPs
	stamp bool          // CQAttr.Timestamps
	armed atomic.Uint32 // ArmArmed and ArmSolicited, for local completions
	asked atomic.Bool   // Arm since the last Disarm

	local      localQueue
	moderation moderation

	pollMu   serial.Section // of Poll, Arm and Disarm
	next     int            // guarded by pollMu: which inbound goes first
	broken   []*inbound     // guarded by pollMu: found to be lying, to be failed after unlock
	toNotify []*inbound     // guarded by pollMu: whose peers wait for space
}

func (d *device) CreateCQ(attr *verbs.CQAttr, ch verbs.CompChannelDriver) (verbs.CQDriver, error) {
	if attr.Vector != 0 {
		return nil, fmt.Errorf("%w: completion vector %d, there is only 0", verbs.ErrInvalid, attr.Vector)
	}
	c := &cq{dev: d, stamp: attr.Timestamps}
	c.all.Store(new([]*inbound))
	if attr.SingleThreaded {
		c.pollMu.Promise()
	}
	c.local.init(attr.CQE)
	attr.CQE = c.local.capacity()
	if ch != nil {
		c.ch = ch.(*channel)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, verbs.ErrClosed
	}
	if err := mayMake("CQs", len(d.cqs), maxCQ); err != nil {
		return nil, err
	}
	d.cqs[c] = struct{}{}
	return c, nil
}

func (c *cq) Poll(wcs []verbs.WC) (int, error) {
	if !c.hasSome() {
		return 0, nil
	}
	return c.poll(wcs)
}

// hasSome reports whether there are completions.
func (c *cq) hasSome() bool {
	arrived := false
	if in := c.single.Load(); in != nil {
		arrived = in.ready()
	} else {
		arrived = c.anyReady()
	}
	// After the rings: what drain has taken out of one counts here before its ring looks empty.
	return arrived || c.work.Load() != 0
}

func (c *cq) anyReady() bool {
	for _, in := range *c.all.Load() {
		if in.ready() {
			return true
		}
	}
	return false
}

// poll takes from the local queue and from each inbound its fair share.
func (c *cq) poll(wcs []verbs.WC) (int, error) {
	if c.users.closed() {
		return 0, verbs.ErrClosed
	}
	if c.local.broken.Load() {
		return 0, errOverrun
	}
	if f := c.dev.faults.Load(); f != nil {
		return f.poll(c, wcs)
	}
	if c.pollMu.Promised {
		c.pollMu.Enter()
	} else {
		c.pollMu.Begin()
	}
	n := c.take(wcs)
	switch {
	case len(c.broken)+len(c.toNotify) != 0:
		c.endAndTell()
	case c.pollMu.Promised:
		c.pollMu.Leave()
	default:
		c.pollMu.Mutex.Unlock()
	}
	if c.stamp {
		c.stampArrivals(wcs[:n])
	}
	return n, nil
}

// take is poll with pollMu held.
func (c *cq) take(wcs []verbs.WC) int {
	list := *c.all.Load()
	if len(list) == 1 && c.local.waiting.Load() == 0 {
		return list[0].take(wcs)
	}
	n := 0
	if c.local.waiting.Load() != 0 {
		n = c.local.take(c, wcs[:c.share(len(wcs), len(list)+1)])
	}
	for left := len(list); left > 0; left-- {
		if c.next++; c.next >= len(list) {
			c.next = 0
		}
		n += list[c.next].take(wcs[n : n+c.share(len(wcs)-n, left)])
	}
	if n < len(wcs) && c.local.waiting.Load() != 0 {
		n += c.local.take(c, wcs[n:])
	}
	return n
}

// share is what one of several sources may take of space.
func (c *cq) share(space, sources int) int { return (space + sources - 1) / sources }

// unlockAndTell ends what pollMu.Lock began, and does what must not be done under it: fail
// QPs whose peers lie, and notify peers that wait for space.
func (c *cq) unlockAndTell() {
	broken, toNotify := c.takeTold()
	c.pollMu.Unlock()
	tell(broken, toNotify)
}

// endAndTell is unlockAndTell for what pollMu.Begin began.
func (c *cq) endAndTell() {
	broken, toNotify := c.takeTold()
	c.pollMu.End()
	tell(broken, toNotify)
}

func (c *cq) takeTold() (broken, toNotify []*inbound) {
	broken, toNotify = c.broken, c.toNotify
	c.broken, c.toNotify = nil, nil
	return broken, toNotify
}

func tell(broken, toNotify []*inbound) {
	for _, in := range toNotify {
		in.q.notifyPeer()
	}
	for _, in := range broken {
		in.q.failFor(in)
	}
}

// Arm sets the word that asks peers to wake us, in the segment of each QP, and its
// counterpart for completions of our own.
func (c *cq) Arm(solicited bool) error {
	if c.users.closed() {
		return verbs.ErrClosed
	}
	if c.ch == nil {
		return fmt.Errorf("%w: the CQ has no completion channel", verbs.ErrInvalid)
	}
	c.pollMu.Begin()
	c.arm(solicited)
	c.endAndTell()
	c.heedFaults()
	return nil
}

// armBeside is Arm for who waits on the channel, which the promise of SingleThreaded lets him do
// while others poll and arm. The CQ has a channel.
func (c *cq) armBeside() error {
	if c.users.closed() {
		return verbs.ErrClosed
	}
	c.pollMu.Lock()
	c.arm(false)
	c.unlockAndTell()
	c.heedFaults()
	return nil
}

// arm is Arm with pollMu held. The store to asked is a full fence, and so is each change of a word
// that is armed: the poll that follows Arm comes after them.
func (c *cq) arm(solicited bool) {
	want := protocol.ArmArmed
	if solicited {
		want |= protocol.ArmSolicited
	}
	c.asked.Store(true)
	for {
		w := c.armed.Load()
		if next := stronger(w, want); w == next || c.armed.CompareAndSwap(w, next) {
			break
		}
	}
	for _, in := range *c.all.Load() {
		if in.pos != in.told && !in.closed {
			in.publish() // the peer, too, may have nothing to do for long
		}
		in.arm(want)
	}
}

// heedFaults has what is withheld give the event that Arm asked for.
func (c *cq) heedFaults() {
	if f := c.dev.faults.Load(); f != nil {
		f.armed(c)
	}
}

// stronger is what is armed where w was and want is asked for: what is armed
// for any completion is not weakened by one who wants solicited ones
// (InfiniBand Architecture Specification, section 11.4.2.2). 0 disarms.
func stronger(w, want uint32) uint32 {
	if want != 0 && w&protocol.ArmArmed != 0 && w&protocol.ArmSolicited == 0 {
		return w
	}
	return want
}

func (c *cq) Disarm() {
	if !c.asked.Load() {
		return
	}
	c.pollMu.Begin()
	c.asked.Store(false)
	c.armed.Store(0)
	for _, in := range *c.all.Load() {
		in.arm(0)
	}
	c.endAndTell()
}

// notify gives the event that Arm asked for, once.
func (c *cq) notify(solicited bool) {
	for {
		w := c.armed.Load()
		if w&protocol.ArmArmed == 0 || (w&protocol.ArmSolicited != 0 && !solicited) {
			return
		}
		// Arm may have changed the word: the event is still to be given.
		if c.armed.CompareAndSwap(w, 0) {
			c.ch.signal()
			return
		}
	}
}

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

// lockedWaiting is waiting for those who do not hold pollMu. A CQ that is broken or closed has
// none: Poll is to say so.
func (c *cq) lockedWaiting(enough int) int {
	if c.users.closed() || c.local.broken.Load() {
		return 0
	}
	c.pollMu.Lock()
	defer c.pollMu.Unlock()
	return c.waiting(enough)
}

// waiting counts the completions that could be polled, until there are enough: each piece of a
// long SEND as one, and of a QP that has failed one of all that it will flush. The
// caller holds pollMu.
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

// stampArrivals gives the time to completions that Poll has made. Those of our own have theirs.
func (c *cq) stampArrivals(wcs []verbs.WC) {
	now := c.dev.clock()
	for i := range wcs {
		if wcs[i].Timestamp == 0 {
			wcs[i].Timestamp = now
		}
	}
}

// complete adds a completion of our own.
func (c *cq) complete(unpolled *atomic.Int32, wc verbs.WC, solicited bool) {
	if c.stamp {
		wc.Timestamp = c.dev.clock()
	}
	if !c.local.push(unpolled, wc) {
		c.overrun()
		return
	}
	c.work.Add(1) // a full fence: the load of armed comes after it
	if c.armed.Load() != 0 {
		c.notify(solicited || wc.Status != verbs.WCSuccess)
	}
}

var errOverrun = fmt.Errorf("%w: completion queue overrun", verbs.ErrQueueFull)

// overrun breaks the CQ: a completion was lost. The QPs that report here fail
// with it.
func (c *cq) overrun() {
	if c.local.broken.Swap(true) {
		return
	}
	c.work.Add(1) // Poll has to look, and finds the CQ broken
	c.dev.raise(verbs.DriverEvent{Type: verbs.EventCQErr, CQ: c})
	go func() { // the caller holds locks that fail takes; ends by itself
		for _, q := range c.dev.allQPs() {
			if q.sendCQ == c || q.recvCQ == c {
				q.fail(failure{event: verbs.EventQPFatal, raise: true})
			}
		}
		for _, q := range c.dev.allDatagramQPs() {
			if q.sendCQ == c || q.recvCQ == c {
				q.failNow()
				c.dev.raise(verbs.DriverEvent{Type: verbs.EventQPFatal, QPN: q.num})
			}
		}
		c.notify(true)
	}()
}

// attach adds an inbound to those that Poll looks at.
func (c *cq) attach(in *inbound) {
	c.pollMu.Lock()
	defer c.pollMu.Unlock()
	list := append([]*inbound{}, *c.all.Load()...)
	c.setInbounds(append(list, in))
	if c.ch != nil {
		c.ch.attach(in)
	}
	if w := c.armed.Load(); w != 0 {
		in.arm(w)
	}
}

// detach removes it; when detach returns nobody polls in any more, except for
// a glance at its ring.
func (c *cq) detach(in *inbound) {
	c.pollMu.Lock()
	defer c.pollMu.Unlock()
	list := make([]*inbound, 0, len(*c.all.Load()))
	for _, other := range *c.all.Load() {
		if other != in {
			list = append(list, other)
		}
	}
	c.setInbounds(list)
	in.gone = true
	if in.attention.Swap(false) {
		c.work.Add(-1)
	}
	if c.ch != nil {
		c.ch.detach(in)
	}
}

func (c *cq) setInbounds(list []*inbound) {
	c.all.Store(&list)
	c.single.Store(nil)
	if len(list) == 1 {
		c.single.Store(list[0])
	}
}

func (c *cq) Resize(cqe int) (int, error) {
	if c.users.closed() {
		return 0, verbs.ErrClosed
	}
	if !c.local.resize(cqe) {
		return 0, fmt.Errorf("%w: more than %d completions wait", verbs.ErrInvalid, cqe)
	}
	return c.local.capacity(), nil
}

func (c *cq) Destroy() error {
	if err := c.users.close(); err != nil {
		return err
	}
	c.end()
	c.dev.mu.Lock()
	defer c.dev.mu.Unlock()
	delete(c.dev.cqs, c)
	return nil
}

// end closes the CQ, whose QPs are gone.
func (c *cq) end() {
	c.users.end()
	c.work.Add(1) // Poll has to look, and finds the CQ closed
}

// localQueue holds the completions that this process itself produced.
// Posters push under mu, pollers take under mu.
type localQueue struct {
	waiting atomic.Int64 // entries in the ring
	broken  atomic.Bool  // an entry was lost

	mu    sync.Mutex
	ring  []localCompletion // guarded by mu: grows with use
	most  int               // guarded by mu: how long it may become
	first int               // guarded by mu: the oldest entry
	n     int               // guarded by mu: how many
}

type localCompletion struct {
	wc       verbs.WC
	unpolled *atomic.Int32 // the count of its QP
}

// How many entries a queue has from its first use on.
const (
	shortQueue      = 4
	shortLocalQueue = 2
)

func (l *localQueue) init(cqe int) {
	l.most = cqe
}

func (l *localQueue) capacity() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.most
}

// push appends; false if there is no room.
func (l *localQueue) push(unpolled *atomic.Int32, wc verbs.WC) bool {
	l.mu.Lock()
	if l.n == len(l.ring) {
		if l.n == l.most {
			l.mu.Unlock()
			return false
		}
		l.move(min(max(2*l.n, shortLocalQueue), l.most))
	}
	at := l.first + l.n
	if at >= len(l.ring) {
		at -= len(l.ring)
	}
	l.ring[at] = localCompletion{wc, unpolled}
	l.n++
	l.waiting.Store(int64(l.n))
	l.mu.Unlock()
	return true
}

// take moves the oldest entries into wcs and gives their QPs the send queue
// slots back.
func (l *localQueue) take(c *cq, wcs []verbs.WC) int {
	l.mu.Lock()
	n := min(l.n, len(wcs))
	var unpolled *atomic.Int32
	run := int32(0) // entries with that count in a row, to be returned together
	for i := range n {
		e := &l.ring[l.first]
		if l.first++; l.first == len(l.ring) {
			l.first = 0
		}
		wcs[i] = e.wc
		if e.unpolled != unpolled {
			polled(unpolled, run)
			unpolled, run = e.unpolled, 0
		}
		run++
		e.unpolled = nil
	}
	polled(unpolled, run)
	l.n -= n
	l.waiting.Store(int64(l.n))
	l.mu.Unlock()
	c.work.Add(int64(-n))
	return n
}

// purge drops the completions of a QP that is destroyed, which it knows by their count.
func (l *localQueue) purge(c *cq, unpolled *atomic.Int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	kept := 0
	for i := range l.n {
		e := l.ring[(l.first+i)%len(l.ring)]
		if e.unpolled == unpolled {
			continue
		}
		l.ring[(l.first+kept)%len(l.ring)] = e
		kept++
	}
	for i := kept; i < l.n; i++ {
		l.ring[(l.first+i)%len(l.ring)].unpolled = nil
	}
	c.work.Add(int64(kept - l.n))
	l.n = kept
	l.waiting.Store(int64(kept))
}

// resize changes the capacity; false if what waits does not fit.
func (l *localQueue) resize(cqe int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if cqe < l.n {
		return false
	}
	l.most = cqe
	if cqe < len(l.ring) {
		l.move(cqe)
	}
	return true
}

// move gives the queue a ring of so many entries, which are enough. mu is held.
func (l *localQueue) move(entries int) {
	ring := make([]localCompletion, entries)
	for i := range l.n {
		ring[i] = l.ring[(l.first+i)%len(l.ring)]
	}
	l.ring, l.first = ring, 0
}
