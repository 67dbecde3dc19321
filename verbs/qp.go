package verbs

import (
	"cmp"
	"fmt"
	"math"
	"sync"
)

// QPType is the service of a QP (enum ib_uverbs_qp_type).
type QPType uint8

// The services, numbered as in rdma/ib_user_ioctl_verbs.h.
const (
	QPTypeRC QPType = 2
	QPTypeUC QPType = 3
	QPTypeUD QPType = 4

	// The ends of a connection of XRC. Requests go from the initiator to the target, which
	// XRCDomain.CreateQP makes.
	QPTypeXRCInitiator QPType = 9
	QPTypeXRCTarget    QPType = 10
)

// QPCap holds the sizes of a QP. CreateQP raises them to what the device made.
type QPCap struct {
	MaxSendWR  int // send work requests outstanding
	MaxRecvWR  int // receive work requests outstanding; 0 with an SRQ
	MaxSendSGE int
	MaxRecvSGE int
	MaxInline  int // bytes
}

// QPInitAttr says what QP to make.
type QPInitAttr struct {
	Type   QPType
	SendCQ *CQ
	RecvCQ *CQ  // nil for an XRC initiator, which receives nothing
	SRQ    *SRQ // nil: the QP has a receive queue of its own
	Cap    QPCap
	// SignalAll makes every send work request give a completion.
	SignalAll bool
	// SingleThreaded promises that no two calls of PostSend overlap, and no two of PostRecv,
	// whichever goroutines they come from: the thread domain of the verbs (ibv_alloc_td). A
	// provider that makes use of it posts without a lock, or has its library do so. All else
	// may be called at any time as ever, Modify, Query and Close too, and waits for the call
	// that runs. A program that breaks the promise mixes up its requests, and may write to
	// memory that Close has unmapped: it can crash. The race detector reports it where the
	// provider takes no lock.
	SingleThreaded bool
	// PlaceAtPoll lets the device place the data of a short WRITE with immediate when its completion is
	// polled, as one that scatters to CQEs does with a short SEND. It promises that nobody depends on that
	// memory before: the program neither uses it nor takes its key away, and no other request of a peer
	// names it, not even a WRITE with immediate, which may be longer and be placed first. A broken
	// promise mixes up data, or fails the QP. What is never polled is never placed. The software HCA
	// does so if both QPs of a connection have PlaceAtPoll and neither has an SRQ: two cache lines
	// less have to move between CPUs. Other devices do not.
	PlaceAtPoll bool
}

// QP is a queue pair. Post calls may come from any goroutine; requests of one
// call stay together and in order.
type QP struct {
	ctx   *Context
	pd    *PD // nil: an XRC target
	drv   QPDriver
	attr  QPInitAttr
	num   uint32
	plain [2]uint32  // see plainOperations
	modMu sync.Mutex // orders transitions
}

// CreateQP makes a QP in state RESET.
func (pd *PD) CreateQP(attr QPInitAttr) (*QP, error) {
	const op = "create QP"
	if err := pd.checkQP(&attr); err != nil {
		return nil, pd.ctx.wrap(op, err)
	}
	var srq SRQDriver
	if attr.SRQ != nil {
		srq = attr.SRQ.drv
	}
	recv := cmp.Or(attr.RecvCQ, attr.SendCQ) // an XRC initiator has none
	drv, err := charged(pd.ctx, func() (QPDriver, error) {
		return pd.drv.CreateQP(&attr, attr.SendCQ.drv, recv.drv, srq)
	})
	if err != nil {
		return nil, pd.ctx.wrap(op, err)
	}
	return &QP{ctx: pd.ctx, pd: pd, drv: drv, attr: attr, num: drv.Num(), plain: plainOperations(attr.Type, pd.ctx.attr.Caps)}, nil
}

func (pd *PD) checkQP(attr *QPInitAttr) error {
	dev := &pd.ctx.attr
	c := &attr.Cap
	switch {
	case attr.Type == QPTypeUC && !dev.Caps.Has(CapUC), attr.Type == QPTypeUD && !dev.Caps.Has(CapUD),
		(attr.Type == QPTypeXRCInitiator || attr.Type == QPTypeXRCTarget) && !dev.Caps.Has(CapXRC):
		return fmt.Errorf("%w: QP type %d", ErrUnsupported, attr.Type)
	case attr.Type == QPTypeXRCTarget:
		return fmt.Errorf("%w: an XRC target belongs to a domain, whose CreateQP makes it", ErrInvalid)
	case attr.Type != QPTypeRC && attr.Type != QPTypeUC && attr.Type != QPTypeUD && attr.Type != QPTypeXRCInitiator:
		return fmt.Errorf("%w: QP type %d", ErrInvalid, attr.Type)
	case attr.Type == QPTypeXRCInitiator && (attr.RecvCQ != nil || attr.SRQ != nil || c.MaxRecvWR != 0 || c.MaxRecvSGE != 0):
		return fmt.Errorf("%w: an XRC initiator has no receive queue, SRQ or receive CQ", ErrInvalid)
	case attr.SendCQ == nil || attr.RecvCQ == nil && attr.Type != QPTypeXRCInitiator:
		return fmt.Errorf("%w: a QP needs a send and a receive CQ", ErrInvalid)
	case attr.SendCQ.ctx != pd.ctx || attr.RecvCQ != nil && attr.RecvCQ.ctx != pd.ctx:
		return fmt.Errorf("%w: CQ of another device", ErrInvalid)
	case attr.SendCQ.attr.SingleThreaded && !attr.SingleThreaded:
		return fmt.Errorf("%w: the send CQ is SingleThreaded, and its QPs have to be", ErrInvalid)
	case attr.SRQ != nil && attr.SRQ.pd.ctx != pd.ctx:
		return fmt.Errorf("%w: SRQ of another device", ErrInvalid)
	case attr.SRQ != nil && attr.SRQ.num != 0:
		return fmt.Errorf("%w: the SRQ is of an XRC domain, where requests name it", ErrInvalid)
	case c.MaxSendWR < 0 || c.MaxSendWR > dev.MaxQPWR || c.MaxRecvWR < 0 || c.MaxRecvWR > dev.MaxQPWR:
		return fmt.Errorf("%w: queue of %d send and %d receive work requests, the device allows %d", ErrInvalid, c.MaxSendWR, c.MaxRecvWR, dev.MaxQPWR)
	case c.MaxSendSGE < 0 || c.MaxSendSGE > dev.MaxSGE || c.MaxRecvSGE < 0 || c.MaxRecvSGE > dev.MaxSGE:
		return fmt.Errorf("%w: %d and %d SGEs, the device allows %d", ErrInvalid, c.MaxSendSGE, c.MaxRecvSGE, dev.MaxSGE)
	case c.MaxInline < 0 || c.MaxInline > dev.MaxInline:
		return fmt.Errorf("%w: %d inline bytes, the device allows %d", ErrInvalid, c.MaxInline, dev.MaxInline)
	}
	return nil
}

// Num returns the QP's number on its device (24 bits).
func (qp *QP) Num() uint32 { return qp.num }

// PD returns the QP's protection domain, nil of an XRC target.
func (qp *QP) PD() *PD { return qp.pd }

// Attr returns what the QP was made with, with the sizes it really has.
func (qp *QP) Attr() QPInitAttr { return qp.attr }

// Driver returns the provider's object, for a connection manager backend that
// belongs to the same provider.
func (qp *QP) Driver() QPDriver { return qp.drv }

// PostSend hands the requests to the device, in order, and returns how many
// it took; with an error, the error is about request n and those after it
// were not looked at. ErrQueueFull is back-pressure. A request that the
// device takes and cannot do gives a failed completion instead, signaled or
// not. It allocates nothing.
func (qp *QP) PostSend(wrs []SendWR) (n int, err error) {
	for i := range wrs {
		if wr := &wrs[i]; !qp.knows(wr.Opcode, wr.Flags) || !qp.hasRoom(wr) {
			return qp.postChecked(wrs)
		}
	}
	if len(wrs) == 0 || qp.ctx.trace.Load() != nil {
		return qp.postChecked(wrs)
	}
	return qp.drv.PostSend(wrs)
}

// postChecked is PostSend of whatever a program gives it, with a tracer or without. It is a
// function of its own for PostSend to keep its arguments in registers.
func (qp *QP) postChecked(wrs []SendWR) (n int, err error) {
	for i := range wrs {
		if err = qp.checkSend(&wrs[i]); err != nil {
			wrs = wrs[:i]
			break
		}
	}
	if len(wrs) == 0 {
		return 0, err
	}
	t := qp.ctx.trace.Load()
	if t != nil {
		t.posting(qp, wrs)
	}
	n, postErr := qp.drv.PostSend(wrs)
	if t != nil {
		t.postedSends(qp, wrs, n)
	}
	if postErr != nil {
		return n, postErr
	}
	return n, err
}

// sendCaps names the capability that an operation needs, 0 for none.
var sendCaps = [...]Cap{
	OpWriteWithImm: CapWriteWithImm, OpSendWithImm: CapSendWithImm, OpSendWithInv: CapSendWithInv,
	OpRead: CapRead, OpCompareSwap: CapAtomics, OpFetchAdd: CapAtomics,
	OpLocalInv: CapMemWindow, OpBindMW: CapMemWindow, OpFlush: CapFlush, OpAtomicWrite: CapAtomicWrite,
}

// plainOperations are those of which a QP has to look at nothing but the flags and the size, a bit
// for each; of requests with SendInline the second.
func plainOperations(typ QPType, caps Cap) (plain [2]uint32) {
	switch typ {
	case QPTypeUD, QPTypeXRCInitiator, QPTypeXRCTarget:
		return plain // the destination is to be looked at
	}
	operations := []Opcode{OpWrite, OpWriteWithImm, OpSend, OpSendWithImm}
	if typ == QPTypeRC {
		operations = append(operations, OpRead, OpCompareSwap, OpFetchAdd)
	}
	for _, op := range operations {
		if caps.Has(sendCaps[op]) {
			plain[0] |= 1 << op
			if op < OpRead {
				plain[1] |= 1 << op
			}
		}
	}
	return plain
}

// wide: an int has room for the length of any request.
const wide = math.MaxInt > math.MaxUint32

// knows and hasRoom report whether a request is one that the QP surely takes: checkSend
// finds nothing wrong, and takes longer. They are two for the compiler to inline them.
func (qp *QP) knows(op Opcode, flags SendFlags) bool {
	return flags&^sendKnown == 0 && qp.plain[flags&SendInline/SendInline]>>op&1 != 0
}

func (qp *QP) hasRoom(wr *SendWR) bool {
	if !wide && !wr.countable() {
		return false
	}
	if wr.Flags&SendInline == 0 {
		return len(wr.SGL) <= qp.attr.Cap.MaxSendSGE
	}
	return wr.inlineLen() <= qp.attr.Cap.MaxInline
}

func (qp *QP) checkSend(wr *SendWR) error {
	if int(wr.Opcode) >= len(sendCaps) || opcodeNames[wr.Opcode] == "" {
		return fmt.Errorf("%w: opcode %d", ErrInvalid, wr.Opcode)
	}
	if need := sendCaps[wr.Opcode]; need != 0 && !qp.ctx.attr.Caps.Has(need) {
		return fmt.Errorf("%w: %v", ErrUnsupported, wr.Opcode)
	}
	if unknown := wr.Flags &^ sendKnown; unknown != 0 {
		return fmt.Errorf("%w: unknown send flags %#x", ErrInvalid, uint8(unknown))
	}
	if err := qp.checkExtra(wr); err != nil {
		return err
	}
	if !wide && !wr.countable() {
		return fmt.Errorf("%w: a request of 2 GiB or more", ErrInvalid)
	}
	if wr.Flags&SendInline != 0 {
		if wr.Opcode == OpRead || wr.Opcode == OpCompareSwap || wr.Opcode == OpFetchAdd {
			return fmt.Errorf("%w: %v cannot be inline", ErrInvalid, wr.Opcode)
		}
		if n := wr.Len(); n > qp.attr.Cap.MaxInline {
			return fmt.Errorf("%w: %d inline bytes, the QP has %d", ErrInvalid, n, qp.attr.Cap.MaxInline)
		}
		return nil
	}
	if len(wr.SGL) > qp.attr.Cap.MaxSendSGE {
		return fmt.Errorf("%w: %d SGEs, the QP has %d", ErrInvalid, len(wr.SGL), qp.attr.Cap.MaxSendSGE)
	}
	return nil
}

// checkExtra checks what only some operations and services have. Objects go to
// the device by their numbers, which mean others on another device.
func (qp *QP) checkExtra(wr *SendWR) error {
	if qp.attr.Type == QPTypeUD {
		if wr.Datagram == nil || wr.Datagram.AH == nil || wr.Opcode != OpSend && wr.Opcode != OpSendWithImm {
			return fmt.Errorf("%w: a UD QP takes SEND with a destination", ErrInvalid)
		}
		if wr.Datagram.AH.pd.ctx != qp.ctx {
			return fmt.Errorf("%w: AH of another device", ErrInvalid)
		}
		if wr.Datagram.QPN >= 1<<24 {
			return fmt.Errorf("%w: QP number %#x has more than 24 bits", ErrInvalid, wr.Datagram.QPN)
		}
		return nil
	}
	if qp.attr.Type == QPTypeXRCTarget {
		return fmt.Errorf("%w: an XRC target has no send queue", ErrInvalid)
	}
	if qp.attr.Type == QPTypeXRCInitiator && wr.RemoteSRQ >= 1<<24 {
		return fmt.Errorf("%w: SRQ number %#x has more than 24 bits", ErrInvalid, wr.RemoteSRQ)
	}
	if qp.attr.Type == QPTypeUC {
		switch wr.Opcode {
		case OpRead, OpCompareSwap, OpFetchAdd, OpFlush, OpAtomicWrite, OpSendWithInv:
			// InfiniBand Architecture Specification 9.2.1: the opcodes of UC end
			// with those of WRITE.
			return fmt.Errorf("%w: a UC QP has no %v", ErrInvalid, wr.Opcode)
		}
	}
	switch wr.Opcode {
	case OpBindMW:
		b := wr.Bind
		if b == nil || b.MW == nil || b.MR == nil && b.Length > 0 {
			return fmt.Errorf("%w: BIND_MW without a window and its memory", ErrInvalid)
		}
		if b.MW.pd.ctx != qp.ctx || b.MR != nil && b.MR.pd.ctx != qp.ctx {
			return fmt.Errorf("%w: window or memory of another device", ErrInvalid)
		}
	case OpFlush:
		if wr.Flush == nil {
			return fmt.Errorf("%w: FLUSH without its range", ErrInvalid)
		}
		if f := wr.Flush; f.Type == 0 || f.Type&^(FlushGlobal|FlushPersistent) != 0 || f.Level > FlushMR {
			return fmt.Errorf("%w: FLUSH of type %d and level %d", ErrInvalid, f.Type, f.Level)
		}
	case OpAtomicWrite:
		if wr.Flags&SendInline == 0 || wr.Len() != 8 || wr.RemoteAddr%8 != 0 {
			return fmt.Errorf("%w: ATOMIC_WRITE takes 8 bytes inline and an aligned address", ErrInvalid)
		}
	}
	return nil
}

// PostRecv hands receive requests to the device, in order, and returns how
// many it took; with an error, the error is about request n. It fails with
// ErrInvalid on a QP with an SRQ, or of XRC, or in RESET. It allocates nothing.
func (qp *QP) PostRecv(wrs []RecvWR) (int, error) {
	switch {
	case qp.attr.SRQ != nil:
		return 0, fmt.Errorf("%w: the QP receives from an SRQ", ErrInvalid)
	case qp.attr.Type == QPTypeXRCInitiator || qp.attr.Type == QPTypeXRCTarget:
		return 0, fmt.Errorf("%w: a QP of XRC has no receive queue", ErrInvalid)
	}
	wrs, err := fittingRecvs(wrs, qp.attr.Cap.MaxRecvSGE)
	if len(wrs) == 0 {
		return 0, err
	}
	n, postErr := qp.drv.PostRecv(wrs)
	if t := qp.ctx.trace.Load(); t != nil {
		t.postedRecvs(qp.ctx, qp.num, wrs[:n])
	}
	if postErr != nil {
		return n, postErr
	}
	return n, err
}

// fittingRecvs returns the requests before the first that has too many SGEs,
// and an error about that one.
func fittingRecvs(wrs []RecvWR, maxSGE int) ([]RecvWR, error) {
	for i := range wrs {
		if len(wrs[i].SGL) > maxSGE {
			return wrs[:i], fmt.Errorf("%w: %d SGEs, the queue has %d", ErrInvalid, len(wrs[i].SGL), maxSGE)
		}
	}
	return wrs, nil
}

// Modify moves the QP to another state or changes attributes within one. mask
// says which fields of attr count. It returns an error that wraps ErrInvalid
// if the transition does not exist, or mask lacks a required attribute or has
// one that is not allowed (InfiniBand Architecture Specification, section
// 11.2.5.2, table 91).
func (qp *QP) Modify(attr QPAttr, mask QPAttrMask) error {
	qp.modMu.Lock()
	defer qp.modMu.Unlock()
	cur, err := qp.drv.Query()
	if err == nil {
		err = qp.checkTransition(cur.State, &attr, mask)
	}
	if err == nil {
		err = checkAttrValues(&attr, mask, &qp.ctx.attr)
	}
	if err == nil {
		if err = qp.drv.Modify(&attr, mask); err == nil {
			qp.ctx.trace.Load().moved(qp, &attr, mask)
		}
	}
	return qp.ctx.wrap("modify QP", err)
}

func (qp *QP) checkTransition(cur QPState, attr *QPAttr, mask QPAttrMask) error {
	if qp.ctx.attr.Transport == TransportIWARP {
		// RFC 5040 and 5041 have no such states; what a driver wants is
		// known to it and to the kernel's connection manager.
		return nil
	}
	return checkTransition(qp.attr.Type, cur, attr, mask)
}

// Query returns the present attributes.
func (qp *QP) Query() (QPAttr, error) {
	a, err := qp.drv.Query()
	return a, qp.ctx.wrap("query QP", err)
}

// Fail moves the QP to ERR: what is posted completes with WCWRFlushErr. A QP
// in RESET, where nothing can be posted, cannot go there; the error then
// wraps ErrInvalid.
func (qp *QP) Fail() error {
	return qp.Modify(QPAttr{State: QPStateErr}, QPAttrState)
}

// AttachMulticast lets a UD QP receive what is sent to a multicast group: to an address
// handle with the group's GID, QP number 0xffffff and the Q_Key of the QP. lid is that
// of the group on InfiniBand. Before, somebody has to join the port to the group,
// where there is a subnet manager or an Ethernet: on RoCE v2 a UDP socket that is a member of the
// group's IP address on the interface of the port (net.ListenMulticastUDP) does. There the group is
// of the same version of IP as the sender's GID. Fabric.ResolveGroup of package rcm does all of it.
// The error wraps ErrUnsupported on a device without CapMulticast, or another service.
func (qp *QP) AttachMulticast(gid GID, lid uint16) error {
	return qp.multicast("attach multicast", gid, func(d MulticastDriver) error { return d.AttachMulticast(gid, lid) })
}

// DetachMulticast takes it out of the group. A QP that is closed leaves all.
func (qp *QP) DetachMulticast(gid GID, lid uint16) error {
	return qp.multicast("detach multicast", gid, func(d MulticastDriver) error { return d.DetachMulticast(gid, lid) })
}

func (qp *QP) multicast(op string, gid GID, do func(MulticastDriver) error) error {
	d, ok := qp.drv.(MulticastDriver)
	if !ok || qp.attr.Type != QPTypeUD || !qp.ctx.attr.Caps.Has(CapMulticast) {
		return qp.ctx.wrap(op, ErrUnsupported)
	}
	if !gid.IsMulticast() {
		return qp.ctx.wrap(op, fmt.Errorf("%w: %v is no multicast GID", ErrInvalid, gid))
	}
	return qp.ctx.wrap(op, do(d))
}

// Close destroys the QP. Completions that were not polled are discarded. If it fails,
// the QP is still there, in its multicast groups too, though what came to these meanwhile
// may be lost; if it could not join one again, the error says so.
func (qp *QP) Close() error {
	err := qp.drv.Destroy()
	if err == nil { // another QP may have the number of one that was closed before
		qp.ctx.trace.Load().closed(qp)
	}
	return qp.ctx.ended("destroy QP", err)
}
