//go:build amd64 || arm64

package mlx5

import (
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/fabric"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/frame"
)

// A domain is one of XRC (struct ib_xrcd).
type domain struct {
	fabric.Domain
	device  *Device
	file    [2]uint64
	shared  bool               // it is that of the file
	users   int                // usecnt: SRQs and targets, and if it is shared those who have it open
	targets map[uint32]*target // by their numbers
}

// release is called when there is one user less.
func (d *domain) release() {
	d.users--
	if d.shared && d.users == 0 {
		delete(d.device.domains, d.file) // core/uverbs_cmd.c, ib_uverbs_dealloc_xrcd
	}
}

// An openDomain is what a program has of a domain (struct ib_uxrcd_object).
type openDomain struct {
	*domain
	uses int // refcnt
}

// openDomain is uverbs_cmd.c, ib_uverbs_open_xrcd.
func (c *ucontext) openDomain(r *frame.Request) unix.Errno {
	const none, create, exclusive = -1, unix.O_CREAT, unix.O_EXCL
	fd, flags := int32(le.Uint32(r.Core[8:])), le.Uint32(r.Core[12:])
	d := &domain{device: c.device, targets: map[uint32]*target{}}
	d.SRQs = map[uint32]fabric.DomainQueue{}
	if fd != none {
		file, ok := c.memory.File(int(fd))
		known := c.device.domains[file]
		switch {
		case !ok:
			return unix.EBADF // uverbs_cmd.c, ib_uverbs_open_xrcd
		case known == nil && flags&create == 0:
			return unix.EAGAIN // the same
		case known != nil && flags&exclusive != 0:
			return unix.EINVAL // the same
		case known != nil:
			d = known
		default:
			d.file, d.shared = file, true
			c.device.domains[file] = d
		}
		d.users++
	}
	return r.Answer(words(c.add(&openDomain{domain: d})), nil)
}

func (c *ucontext) closeDomain(r *frame.Request) unix.Errno {
	handle := le.Uint32(r.Core)
	o, ok := lookup[*openDomain](c, handle)
	if !ok {
		return unix.ENOENT // core/rdma_core.c, lookup_get_idr_uobject
	}
	if c.inUse(o.uses > 0) {
		return unix.EBUSY // core/uverbs_std_types.c, uverbs_free_xrcd
	}
	if o.shared {
		o.release()
	}
	delete(c.objects, handle)
	return 0
}

// createDomainSRQ is uverbs_cmd.c, ib_uverbs_create_xsrq.
func (c *ucontext) createDomainSRQ(r *frame.Request) unix.Errno {
	const xrc = 1 // IB_UVERBS_SRQT_XRC
	b := r.Core
	if le.Uint32(b[16:]) != xrc {
		return unix.EOPNOTSUPP // the model has no others
	}
	s := &receiveQueue{context: c, shared: true, user: le.Uint64(b[8:])}
	var found [3]bool
	s.pd, found[0] = lookup[*fabric.PD](c, le.Uint32(b[20:]))
	s.domain, found[1] = lookup[*openDomain](c, le.Uint32(b[40:]))
	s.cq, found[2] = lookup[*completionQueue](c, le.Uint32(b[44:]))
	if found != [3]bool{true, true, true} {
		return unix.EINVAL // uverbs_cmd.c, __uverbs_create_xsrq
	}
	return s.create(r, le.Uint32(b[24:]), le.Uint32(b[28:]))
}

// join makes an SRQ one of its domain, and leave takes it out (core/verbs.c, ib_create_srq_user and
// ib_destroy_srq_user).
func (r *receiveQueue) join() {
	r.domain.SRQs[r.srqn] = r
	r.domain.users++
	r.domain.uses++
	r.cq.users++
}

func (r *receiveQueue) leave() {
	r.cq.release()
	delete(r.domain.SRQs, r.srqn)
	r.domain.release()
	r.domain.uses--
	r.cq.users--
}

// Received writes the CQE of a WQE of a domain's SRQ. It names that by its index, or of version 0
// by its number (include/linux/mlx5/device.h, struct mlx5_cqe64).
func (r *receiveQueue) Received(qpn uint32, index uint16, receipt fabric.Receipt) {
	e := completionOf(qpn, index, &receipt)
	if e.uidx = r.uidx; e.uidx == defaultUidx {
		e.uidx = r.srqn
	}
	e.written = func() { r.returned++ }
	r.cq.put(e)
}

// A target is a QP of a domain, of which programs have what they opened.
type target struct {
	fabric.QP
	domain *domain
	open   []*openTarget
}

// An openTarget is what a program has of a target (struct ib_qp, whose real_qp is another).
type openTarget struct {
	*target
	context *ucontext
	domain  *openDomain
	handle  uint32
	user    uint64
	events  uint32
}

// createTarget is uverbs_cmd.c, create_qp, and core/verbs.c, create_xrc_qp_user. The driver's
// part is not looked at.
func (c *ucontext) createTarget(r *frame.Request) unix.Errno {
	d, ok := lookup[*openDomain](c, le.Uint32(r.Core[16:]))
	if !ok {
		return unix.EINVAL // uverbs_cmd.c, create_qp
	}
	t := &target{domain: d.domain, QP: fabric.QP{Port: c.device.Port, Service: fabric.XRCTarget, Number: c.device.Next(), Domain: &d.Domain}}
	t.Queues = t
	c.device.QPs[t.Number] = &t.QP
	d.targets[t.Number] = t
	d.users++
	return c.give(r, d, t, le.Uint64(r.Core[8:]))
}

// openQP is uverbs_cmd.c, ib_uverbs_open_qp.
func (c *ucontext) openQP(r *frame.Request) unix.Errno {
	b := r.Core
	d, ok := lookup[*openDomain](c, le.Uint32(b[16:]))
	if !ok || fabric.Service(b[24]) != fabric.XRCTarget {
		return unix.EINVAL // core/verbs.c, ib_open_qp
	}
	t := d.targets[le.Uint32(b[20:])]
	if t == nil {
		return unix.EINVAL // the same
	}
	return c.give(r, d, t, le.Uint64(b[8:]))
}

// give opens a target for the program.
func (c *ucontext) give(r *frame.Request, d *openDomain, t *target, user uint64) unix.Errno {
	o := &openTarget{target: t, context: c, domain: d, user: user}
	o.handle = c.add(o)
	t.open = append(t.open, o)
	d.uses++
	return r.Answer(words(o.handle, t.Number, 0, 0, 0, 0, 0, 0), nil)
}

// close is core/verbs.c, __ib_destroy_shared_qp.
func (o *openTarget) close() {
	t, c := o.target, o.context
	t.open = without(t.open, o)
	o.domain.uses--
	o.events -= c.unread(o.user, fabric.EventQPFatal, fabric.EventQPRequest, fabric.EventQPAccess, fabric.EventCommEst, fabric.EventSQDrained)
	delete(c.objects, o.handle)
	if len(t.open) > 0 {
		return
	}
	delete(c.device.QPs, t.Number)
	delete(t.domain.targets, t.Number)
	t.domain.release()
}

// leaveDomains takes what a program has left out of the domains.
func (c *ucontext) leaveDomains() {
	for _, o := range c.objects {
		switch o := o.(type) {
		case *openTarget:
			o.close()
		case *receiveQueue:
			if o.domain != nil {
				o.leave()
			}
		}
	}
	for _, o := range c.objects {
		if o, ok := o.(*openDomain); ok && o.shared {
			o.release()
		}
	}
}

// Event tells all programs that have the target open (core/verbs.c, __ib_shared_qp_event_handler).
func (t *target) Event(kind uint32) {
	for _, o := range t.open {
		o.events++
		o.context.event(kind, o.user)
	}
}

// The rest of the queues of a target, which has none.

func (t *target) Next() *fabric.Request                           { return nil }
func (t *target) Begin(*fabric.Request)                           {}
func (t *target) Complete(*fabric.Request, fabric.Status, uint32) {}
func (t *target) Receives() fabric.ReceiveQueue                   { return nil }
func (t *target) Received(uint16, fabric.Receipt)                 {}
func (t *target) Flush() bool                                     { return false }
func (t *target) Reset()                                          {}
func (t *target) Broken() bool                                    { return false }
