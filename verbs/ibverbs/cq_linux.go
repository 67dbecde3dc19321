//go:build amd64 || arm64

package ibverbs

import (
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
)

// cq is a completion queue.
//
// The path of a poll: the library lays completions out in memory of the CQ, and each is
// looked up by the number of its QP, which counts it as done. A completion of a QP that is
// not here any more is dropped: some drivers leave those of destroyed QPs where they are. That of
// an SRQ of an XRC domain names a QP that may be of another process, and is looked up by the id of
// its receive, which the SRQ has chosen.
type cq struct {
	dev     *device
	address uintptr  // struct ibv_cq
	ch      *channel // nil: polled only
	life    lifetime

	mu     sync.Mutex
	gone   bool           // guarded by mu
	qps    map[uint32]*qp // guarded by mu: by number, who may report here
	last   *qp            // guarded by mu: of qps, who reported last
	odd    int            // guarded by mu: completions of which the library may make no sense, see leave
	kept   []verbs.WC     // guarded by mu: taken from the library already
	failed []*qp          // guarded by mu: that a completion has shown to have failed, and Poll looks after
	stamps bool           // completions have a time: it is made by ibv_create_cq_ex
	size   int            // guarded by mu: completions that the queue holds, but for the spare ones
	spare  int            // guarded by mu: entries that QPs may have
	lent   int            // guarded by mu: those that they have
	// armed is the number of the event after which the CQ was armed for any completion, if
	// armedAny. Guarded by mu.
	armed    uint64
	armedAny bool
	lost     error // guarded by mu: completions were lost
	broken   error // guarded by mu: what the library answered when it was polled
	room     arena // guarded by mu

	// receives are those of SRQs of XRC domains, by the ids that the library has of them.
	// Guarded by mu, as given, which counts them.
	receives map[uint64]receive
	given    uint64

	events atomic.Uint64 // that were taken from the channel
}

func (d *device) CreateCQ(attr *verbs.CQAttr, ch verbs.CompChannelDriver) (verbs.CQDriver, error) {
	c := &cq{dev: d, qps: make(map[uint32]*qp), stamps: attr.Timestamps}
	if ch != nil {
		var ok bool
		if c.ch, ok = ch.(*channel); !ok || c.ch.dev != d {
			return nil, fmt.Errorf("%w: completion channel of another device", verbs.ErrInvalid)
		}
	}
	if err := d.during(func() error { return c.create(attr) }); err != nil {
		return nil, err
	}
	attr.CQE = c.size
	return c, nil
}

func (c *cq) create(attr *verbs.CQAttr) (err error) {
	if c.room, err = newArena(0); err != nil {
		return err
	}
	var channel uintptr
	if c.ch != nil {
		if err := c.ch.join(); err != nil {
			c.room.free()
			return err
		}
		channel = c.ch.address
	}
	c.address, err = c.allocate(attr, channel)
	if err == nil {
		if v := view[ibvCQ](c.address); v.context == c.dev.context && v.channel == channel && v.cqe >= int32(attr.CQE) {
			c.size, c.spare = attr.CQE, int(v.cqe)-attr.CQE
			c.dev.add(c.address, c)
			return nil
		}
		number(c.dev.lib.destroyCQ, c.address)
		err = unknownLayout("ibv_cq")
	} else {
		err = failed("ibv_create_cq", err)
	}
	if c.ch != nil {
		c.ch.leave()
	}
	c.room.free()
	return err
}

// allocate has the library make the CQ.
func (c *cq) allocate(attr *verbs.CQAttr, channel uintptr) (uintptr, error) {
	d, entries := c.dev, attr.CQE+spareEntries(attr.CQE)
	in := &ibvCQInitAttrEx{cqe: uint32(entries), channel: channel, compVector: uint32(attr.Vector), wcFlags: wcStandard}
	if c.stamps {
		in.wcFlags |= wcWithTimestamp
		if d.clock.hz != 0 {
			in.wcFlags |= wcWithWallTime
		}
	}
	extended := func() (uintptr, error) {
		return handle(d.extension.createCQEx, d.context, uintptr(unsafe.Pointer(in)))
	}
	// In libmlx5 a post takes the lock of its CQ only to read how far polls are, so it may overlap with
	// them. That is not known of other drivers.
	if attr.SingleThreaded && d.entry.Driver == "mlx5" && d.extension.createCQEx != 0 {
		in.compMask, in.flags = cqInitFlags, cqSingleThreaded
		if address, err := extended(); err == nil {
			return address, nil
		}
		in.compMask, in.flags = 0, 0 // not every driver takes it
	}
	if c.stamps {
		return extended()
	}
	return handle(d.lib.createCQ, d.context, uintptr(entries), 0, channel, uintptr(attr.Vector))
}

func (c *cq) Poll(wcs []verbs.WC) (int, error) {
	c.mu.Lock()
	n, err := c.poll(wcs)
	failed := c.failed
	c.failed = nil
	c.mu.Unlock()
	for _, q := range failed {
		q.flush() // receives that were posted while it failed
	}
	return n, err
}

// poll is Poll for who holds mu.
func (c *cq) poll(wcs []verbs.WC) (int, error) {
	if c.gone {
		return 0, verbs.ErrClosed
	}
	n := 0
	if len(c.kept) > 0 {
		n = copy(wcs, c.kept)
		c.kept = c.kept[:copy(c.kept, c.kept[n:])]
		n = c.count(wcs[:n])
	}
	// One round through the queue is all that completions of QPs that are gone get.
	for looked := 0; n < len(wcs) && looked <= c.size+c.spare && c.broken == nil; {
		k, all := c.take(wcs[n:])
		looked += k
		k = c.count(wcs[n : n+k])
		n += k
		if all || k > 0 {
			break
		}
	}
	if n == 0 && len(wcs) > 0 {
		switch {
		case c.dev.gone.Load():
			return 0, errGone
		case c.broken != nil:
			return 0, c.broken
		}
		return 0, c.lost
	}
	return n, nil
}

// most is how many completions are taken at once.
const most = arenaBytes / int(unsafe.Sizeof(ibvWC{}))

// take takes completions from the library. all says that there are no more. The caller
// holds mu.
func (c *cq) take(wcs []verbs.WC) (n int, all bool) {
	if c.stamps {
		return c.takeExtended(wcs)
	}
	for n < len(wcs) {
		want := min(len(wcs)-n, most)
		if c.odd > 0 {
			want = 1 // with an error the library tells of none
		}
		wc := unsafe.Slice((*ibvWC)(unsafe.Pointer(&c.room.mem[0])), want)
		poll := call{fn: c.dev.ops[opPollCQ], args: [6]uintptr{c.address, uintptr(want), uintptr(unsafe.Pointer(&wc[0]))}}
		poll.do()
		got := int(int32(poll.result))
		if got < 0 || got > want {
			if c.passesOver() {
				continue
			}
			c.broken = errAnswer(got)
			return n, true
		}
		for i := range wc[:got] {
			if c.dev.translate(&wc[i], &wcs[n]); !c.marked(&wcs[n]) {
				n++
			}
		}
		if got < want {
			return n, true
		}
	}
	return n, false
}

func errAnswer(answer int) error {
	return fmt.Errorf("%w: the library answers %d when the completion queue is polled", verbs.ErrInvalid, answer)
}

// The flags that mean the same here.
const wcFlags = verbs.WCGRH | verbs.WCWithImm | verbs.WCWithInv

// rxeWithInv is the flag of an invalidation as the kernel numbers it, which librxe passes on.
const rxeWithInv = 1 << 2

func (d *device) translate(from *ibvWC, to *verbs.WC) {
	*to = verbs.WC{
		ID: from.wrID, Status: verbs.WCStatus(from.status), Opcode: verbs.WCOpcode(from.opcode), Flags: verbs.WCFlags(from.wcFlags) & wcFlags,
		ByteLen: from.byteLen, QPN: from.qpNum, SrcQPN: from.srcQP,
	}
	if from.wcFlags&rxeWithInv != 0 && d.entry.DriverID == rdmahost.DriverRXE {
		to.Flags |= verbs.WCWithInv
	}
	// Some drivers leave them as they were in others, and libmlx5 takes for a service level
	// what on Ethernet is the kind of the packet.
	if to.Opcode >= verbs.WCRecv && d.entry.Transport == verbs.TransportIB {
		to.SLID, to.SL, to.PathBits = from.slid, from.sl, from.dlidPathBits
	}
	switch {
	case to.Status != verbs.WCSuccess:
		to.VendorErr, to.Flags = from.vendorErr, 0
	case to.Flags&verbs.WCWithImm != 0:
		to.Imm = bits.ReverseBytes32(from.imm)
	case to.Flags&verbs.WCWithInv != 0:
		to.Imm = from.imm
	}
}

// count tells the QPs of their completions, gives those of receives of XRC domains the ids of their
// callers, and drops those of QPs that are gone. It returns how many stay, at the beginning of wcs.
// The caller holds mu.
func (c *cq) count(wcs []verbs.WC) (n int) {
	for i := range wcs {
		if q := c.qp(wcs[i].QPN); q != nil {
			if q.completed(&wcs[i]) {
				c.failed = append(c.failed, q)
			}
		} else if r, ok := c.receives[wcs[i].ID]; ok {
			delete(c.receives, wcs[i].ID)
			wcs[i].ID = r.id
		} else {
			continue
		}
		if n != i {
			wcs[n] = wcs[i]
		}
		n++
	}
	return n
}

// qp returns the QP of that number that may report here, nil if there is none. The caller
// holds mu.
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

// marked reports whether nobody is to see the completion. The caller holds mu.
func (c *cq) marked(wc *verbs.WC) bool {
	if wc.ID != markedID {
		return false
	}
	q := c.qp(wc.QPN)
	return q != nil && q.marks.completed(wc)
}

var errOverrun = fmt.Errorf("%w: completion queue overrun", verbs.ErrQueueFull)

// overrun is called when the device has had no room for a completion. Those
// that are there can be polled, then Poll fails.
func (c *cq) overrun() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost = errOverrun
}

func (c *cq) Arm(solicited bool) error {
	if c.ch == nil {
		return fmt.Errorf("%w: the CQ has no completion channel", verbs.ErrInvalid)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.gone:
		return verbs.ErrClosed
	case c.dev.gone.Load():
		return errGone
	}
	events := c.events.Load()
	if solicited && c.armedAny && c.armed == events {
		return nil // a solicited one is one of any, and some drivers would forget that
	}
	arm := call{fn: c.dev.ops[opReqNotifyCQ], args: [6]uintptr{c.address, uintptr(flag(solicited))}}
	arm.do()
	if n := int32(arm.result); n != 0 {
		return failed("ibv_req_notify_cq", errnoOf(uintptr(max(n, -n))))
	}
	c.armed, c.armedAny = events, !solicited
	return nil
}

// Disarm has no counterpart in the library.
func (c *cq) Disarm() {}

func (c *cq) Resize(cqe int) (int, error) {
	err := c.dev.during(func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.gone {
			return verbs.ErrClosed
		}
		// The library's queue has more room than was asked for, and does not say how many wait there.
		if c.gather(cqe + 1); len(c.kept) > cqe {
			return fmt.Errorf("%w: more than %d completions wait", verbs.ErrInvalid, cqe)
		}
		if err := status(c.dev.lib.resizeCQ, c.address, uintptr(cqe+max(spareEntries(cqe), c.lent))); err != nil {
			return failed("ibv_resize_cq", err)
		}
		c.size, c.spare = cqe, int(view[ibvCQ](c.address).cqe)-cqe
		return nil
	})
	return c.capacity(), err
}

func (c *cq) Moderate(count int, period time.Duration) error {
	in := &ibvModifyCQAttr{attrMask: cqAttrModerate, count: uint16(count), period: uint16(period / time.Microsecond)}
	return c.dev.during(func() error {
		return c.life.during(func() error {
			return failed("ibv_modify_cq", status(c.dev.extension.modifyCQ, c.address, uintptr(unsafe.Pointer(in))))
		})
	})
}

func (c *cq) capacity() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.size
}

// drain takes completions from the library, so that slots of queues get free.
func (c *cq) drain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gather(c.size)
}

// gather takes completions from the library until there are no more there, or limit are kept.
// Whoever polls finds them first. The caller holds mu.
func (c *cq) gather(limit int) {
	var wcs [16]verbs.WC
	for all := c.gone || c.broken != nil; !all && len(c.kept) < limit; {
		var n int
		n, all = c.take(wcs[:min(len(wcs), limit-len(c.kept))])
		c.kept = append(c.kept, wcs[:n]...)
	}
}

// attach makes q one of those who may report here.
func (c *cq) attach(q *qp) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.qps[q.num], c.last = q, nil
}

// purge drops the completions of q that nobody has polled. The device has stopped q, and
// the caller holds mu.
func (c *cq) purge(q *qp) {
	c.keep(func(wc *verbs.WC) bool { return wc.QPN != q.num && c.known(wc) })
}

// known reports whether the QP or the receive of a completion is here. The caller holds mu.
func (c *cq) known(wc *verbs.WC) bool {
	_, ok := c.receives[wc.ID]
	return ok || c.qps[wc.QPN] != nil
}

// keep takes all completions from the library, and keeps certain ones. The caller holds mu.
func (c *cq) keep(wanted func(*verbs.WC) bool) {
	kept := slices.DeleteFunc(c.kept, func(wc verbs.WC) bool { return !wanted(&wc) })
	var wcs [16]verbs.WC
	for looked, all := 0, false; !all && looked <= c.size+c.spare; {
		var n int
		n, all = c.take(wcs[:])
		for i := range wcs[:n] {
			if wanted(&wcs[i]) {
				kept = append(kept, wcs[i])
			}
		}
		looked += n
	}
	c.kept = kept
}

// receive is one of an SRQ of an XRC domain: its completion names neither that
// nor a QP that is here.
type receive struct {
	srq *srq
	id  uint64 // the caller's
}

// expect gives receives that s is about to post ids of their own.
func (c *cq) expect(s *srq, wrs []verbs.RecvWR) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.receives == nil {
		c.receives = make(map[uint64]receive)
	}
	for i := range wrs {
		c.given++
		c.receives[c.given] = receive{s, wrs[i].ID}
		wrs[i].ID = c.given
	}
}

// forget is called with those that were not posted.
func (c *cq) forget(wrs []verbs.RecvWR) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range wrs {
		delete(c.receives, wrs[i].ID)
	}
}

// leave destroys an SRQ of an XRC domain, and takes its completions out: a later SRQ or QP
// may get its index or number, and the library would take them for those of that one. Until
// there is one the library makes no sense of them, and says that polling has failed,
// without a word of the completions that it has found before.
func (c *cq) leave(s *srq, destroy func() error) error {
	c.dev.xrc.Lock()
	defer c.dev.xrc.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := destroy(); err != nil {
		return err
	}
	maps.DeleteFunc(c.receives, func(_ uint64, r receive) bool { return r.srq == s })
	c.odd = c.size + c.spare
	c.keep(c.known)
	c.odd = 0
	return nil
}

// passesOver reports whether a completion that the library makes no sense of is that of an SRQ that
// is gone. The library has taken it out of the queue. The caller holds mu.
func (c *cq) passesOver() bool {
	if c.odd == 0 {
		return false
	}
	c.odd--
	return true
}

func (c *cq) Destroy() error { return c.dev.during(c.destroy) }

func (c *cq) rank() int { return rankCQ }

func (c *cq) destroy() error {
	return c.life.end(func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.dev.drop(c.address)
		err := failed("ibv_destroy_cq", status(c.dev.lib.destroyCQ, c.address))
		if c.dev.restore(c.address, c, err) {
			return err
		}
		c.gone = true
		c.room.free()
		if c.ch != nil {
			c.ch.leave()
		}
		return err
	})
}

func (c *cq) abandon() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = true
	c.room.free()
}

// lockAll locks the CQs of a QP, which may be one.
func lockAll(a, b *cq) (unlock func()) {
	switch {
	case a == b:
		a.mu.Lock()
		return a.mu.Unlock
	case a.address > b.address:
		a, b = b, a
	}
	a.mu.Lock()
	b.mu.Lock()
	return func() {
		b.mu.Unlock()
		a.mu.Unlock()
	}
}

// resizable finds out whether the driver of the device resizes CQs.
func (c *cq) resizable() bool {
	_, err := c.Resize(2)
	return err == nil || !errors.Is(err, verbs.ErrUnsupported)
}
