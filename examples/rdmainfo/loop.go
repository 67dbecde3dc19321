package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/kernelcm"
	"github.com/seed-b9b531af/ramjet/verbs"
)

// A loop is two QPs on one port that are connected to each other, or of UD.
type loop struct {
	ctx   *verbs.Context
	kind  loopKind
	a, b  *end
	conns []rcm.Conn // where a connection manager has connected them
}

// A loopKind says what QPs these are.
type loopKind struct {
	service verbs.QPType // of a; b is the target of an XRC initiator
	shared  bool         // they receive from an SRQ each
	stamped bool         // completions have the device's time
}

var ofRC = loopKind{service: verbs.QPTypeRC}

// An end is a QP with what it needs.
type end struct {
	pd     *verbs.PD
	ch     *verbs.CompChannel
	cq     *verbs.CQ
	domain *verbs.XRCDomain // of an XRC target
	srq    *verbs.SRQ
	qp     *verbs.QP
	mr     *verbs.MR
	remote uint32              // of an XRC initiator: the SRQ that its requests name
	done   map[uint64]verbs.WC // completions that nobody has waited for
	next   uint64              // id
}

const (
	loopMemory   = 4 << 20 // bytes of each end
	loopRequests = 64      // in each queue
	loopInline   = 64
	loopTimeout  = 5 * time.Second // for one completion, and for a connection
	loopQKey     = 0x1ee7
	everyRight   = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic
)

// newLoop makes two QPs and connects them, from one row of the port's GID table to itself.
func newLoop(ctx *verbs.Context, port uint8, gid verbs.GIDEntry, kind loopKind) (l *loop, err error) {
	l = &loop{ctx: ctx, kind: kind}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	if l.a, err = newEnd(ctx, kind); err != nil {
		return l, err
	}
	other := kind
	if kind.service == verbs.QPTypeXRCInitiator {
		other.service = verbs.QPTypeXRCTarget
	}
	if l.b, err = newEnd(ctx, other); err != nil {
		return l, err
	}
	if l.b.domain != nil {
		l.a.remote = l.b.srq.Num()
	}
	if ctx.Attr().Transport == verbs.TransportIWARP {
		return l, l.connectByManager()
	}
	attr, err := ctx.QueryPort(port)
	if err != nil {
		return l, err
	}
	if err = l.a.connect(l.b, port, &attr, gid); err != nil {
		return l, err
	}
	return l, l.b.connect(l.a, port, &attr, gid)
}

func newEnd(ctx *verbs.Context, kind loopKind) (*end, error) {
	e := &end{done: map[uint64]verbs.WC{}}
	attr := ctx.Attr()
	access := everyRight
	if !attr.Caps.Has(verbs.CapAtomics) {
		access &^= verbs.AccessRemoteAtomic
	}
	var err error
	if e.pd, err = ctx.AllocPD(); err != nil {
		return e, err
	}
	if e.ch, err = ctx.CreateCompChannel(); err != nil {
		return e, err
	}
	if e.cq, err = ctx.CreateCQ(verbs.CQAttr{CQE: 2 * loopRequests, Timestamps: kind.stamped}, e.ch); err != nil {
		return e, err
	}
	if e.mr, err = e.pd.AllocMR(loopMemory, access, verbs.MROptions{}); err != nil {
		return e, err
	}
	if kind.service == verbs.QPTypeXRCTarget {
		return e, e.openDomain()
	}
	if kind.shared {
		if e.srq, err = e.pd.CreateSRQ(verbs.SRQAttr{MaxWR: loopRequests, MaxSGE: 1}); err != nil {
			return e, err
		}
	}
	want := verbs.QPInitAttr{Type: kind.service, SendCQ: e.cq, RecvCQ: e.cq, SRQ: e.srq, Cap: verbs.QPCap{
		MaxSendWR: loopRequests, MaxRecvWR: loopRequests, MaxSendSGE: min(3, attr.MaxSGE), MaxRecvSGE: 1, MaxInline: min(loopInline, attr.MaxInline),
	}}
	if kind.service == verbs.QPTypeXRCInitiator { // which receives nothing
		want.RecvCQ, want.Cap.MaxRecvWR, want.Cap.MaxRecvSGE = nil, 0, 0
	}
	e.qp, err = e.pd.CreateQP(want)
	return e, err
}

// access is what the QP lets its peer do.
func (e *end) access() verbs.Access { return e.mr.Access() &^ verbs.AccessLocalWrite }

// A step is a change of a QP's state with the attributes that its service has.
type step struct {
	state verbs.QPState
	mask  verbs.QPAttrMask
}

var steps = map[verbs.QPType][3]step{
	verbs.QPTypeRC: {
		{verbs.QPStateInit, verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrAccess},
		{verbs.QPStateRTR, verbs.QPAttrAV | verbs.QPAttrPathMTU | verbs.QPAttrDestQPN | verbs.QPAttrRQPSN | verbs.QPAttrMaxDestRdAtomic | verbs.QPAttrMinRNRTimer},
		{verbs.QPStateRTS, verbs.QPAttrTimeout | verbs.QPAttrRetryCount | verbs.QPAttrRNRRetry | verbs.QPAttrSQPSN | verbs.QPAttrMaxRdAtomic},
	},
	verbs.QPTypeUC: {
		{verbs.QPStateInit, verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrAccess},
		{verbs.QPStateRTR, verbs.QPAttrAV | verbs.QPAttrPathMTU | verbs.QPAttrDestQPN | verbs.QPAttrRQPSN},
		{verbs.QPStateRTS, verbs.QPAttrSQPSN},
	},
	verbs.QPTypeUD: {
		{verbs.QPStateInit, verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrQKey},
		{verbs.QPStateRTR, 0},
		{verbs.QPStateRTS, verbs.QPAttrSQPSN},
	},
}

// stepsOf returns those of a service. The ends of XRC are moved as those of RC are.
func stepsOf(service verbs.QPType) [3]step {
	if service == verbs.QPTypeXRCInitiator || service == verbs.QPTypeXRCTarget {
		service = verbs.QPTypeRC
	}
	return steps[service]
}

// connect brings the QP to RTS, towards that of peer if its service connects QPs.
func (e *end) connect(peer *end, port uint8, attr *verbs.PortAttr, gid verbs.GIDEntry) error {
	const psn = 0x3579b
	service := e.qp.Attr().Type
	want := verbs.QPAttr{
		Port: port, QKey: loopQKey, PathMTU: attr.ActiveMTU, DestQPN: peer.qp.Num(), RQPSN: psn, SQPSN: psn,
		MaxDestRdAtomic: 1, MaxRdAtomic: 1, MinRNRTimer: 12, Timeout: 14, RetryCount: 7, RNRRetry: 7, AV: vector(port, attr, gid),
	}
	want.Access = e.access()
	if service == verbs.QPTypeUC {
		want.Access &= verbs.AccessRemoteWrite
	}
	for _, s := range stepsOf(service) {
		want.State = s.state
		if err := e.qp.Modify(want, verbs.QPAttrState|s.mask); err != nil {
			return err
		}
	}
	return nil
}

// vector is the way from a port to itself.
func vector(port uint8, attr *verbs.PortAttr, gid verbs.GIDEntry) verbs.AddressVector {
	const infiniBand = 1
	if attr.LinkLayer == infiniBand {
		return verbs.AddressVector{Port: port, DLID: attr.LID}
	}
	return verbs.AddressVector{Port: port, DGID: gid.GID, SGIDIndex: uint8(gid.Index), HopLimit: 1, IsGlobal: true}
}

// connectByManager connects both ends over the device's own address.
func (l *loop) connectByManager() error {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return err
	}
	fabric := kernelcm.New(kernelcm.Config{Device: l.ctx.Name()})
	err = fmt.Errorf("no address of this host is on %s", l.ctx.Name())
	for _, a := range addresses {
		prefix, parseErr := netip.ParsePrefix(a.String())
		ip := prefix.Addr()
		if parseErr != nil || ip.IsLoopback() || ip.IsLinkLocalUnicast() {
			continue
		}
		at := netip.AddrPortFrom(ip, uint16(20000+rand.IntN(10000)))
		listener, listenErr := fabric.Listen(at, rcm.ListenConfig{})
		if listenErr != nil {
			err = errors.Join(err, listenErr)
			continue
		}
		err = l.dialThrough(fabric, listener, at)
		return errors.Join(err, listener.Close())
	}
	return err
}

func (l *loop) dialThrough(fabric rcm.Fabric, listener rcm.Listener, at netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(context.Background(), loopTimeout)
	defer cancel()
	param := rcm.ConnParam{ResponderResources: 1, InitiatorDepth: 1, Access: l.a.access()}
	type accepted struct {
		conn rcm.Conn
		err  error
	}
	other := make(chan accepted, 1)
	go func() {
		var a accepted
		request, err := listener.Accept(ctx) // ends with the dial, or ctx
		if a.err = err; err == nil {
			a.conn, a.err = request.Accept(ctx, l.b.qp, param)
		}
		other <- a
	}()
	route, err := fabric.Resolve(ctx, at)
	if err == nil {
		var conn rcm.Conn
		if conn, err = route.Connect(ctx, l.a.qp, param); err == nil {
			l.conns = append(l.conns, conn)
		}
	}
	if err != nil {
		cancel()
	}
	a := <-other // ends with ctx
	if a.err == nil {
		l.conns = append(l.conns, a.conn)
	}
	return errors.Join(err, a.err)
}

func (l *loop) close() error {
	var err error
	for _, c := range l.conns {
		err = errors.Join(err, c.Disconnect())
	}
	for _, e := range []*end{l.a, l.b} {
		if e != nil {
			err = errors.Join(err, e.close())
		}
	}
	return err
}

func (e *end) close() (err error) {
	if e.qp != nil {
		err = e.qp.Close()
	}
	if e.srq != nil {
		err = errors.Join(err, e.srq.Close())
	}
	if e.domain != nil {
		err = errors.Join(err, e.domain.Close())
	}
	if e.mr != nil {
		err = errors.Join(err, e.mr.Close())
	}
	if e.cq != nil {
		err = errors.Join(err, e.cq.Close())
	}
	if e.ch != nil {
		err = errors.Join(err, e.ch.Close())
	}
	if e.pd != nil {
		err = errors.Join(err, e.pd.Close())
	}
	return err
}

// post posts a request that completes, and returns its id.
func (e *end) post(wr verbs.SendWR) (uint64, error) {
	e.next++
	wr.ID, wr.RemoteSRQ = e.next, e.remote
	wr.Flags |= verbs.SendSignaled
	_, err := e.qp.PostSend([]verbs.SendWR{wr})
	return wr.ID, err
}

// receive posts a receive and returns its id.
func (e *end) receive(offset, length int) (uint64, error) {
	e.next++
	post := e.qp.PostRecv
	if e.srq != nil {
		post = e.srq.PostRecv
	}
	_, err := post([]verbs.RecvWR{{ID: e.next, SGL: []verbs.SGE{e.mr.SGE(offset, length)}}})
	return e.next, err
}

// poll takes completions for those who wait for them, and says whether there were some.
func (e *end) poll() (bool, error) {
	var wcs [16]verbs.WC
	n, err := e.cq.Poll(wcs[:])
	for _, wc := range wcs[:n] {
		e.done[wc.ID] = wc
	}
	return n > 0, err
}

// has says whether the completion of a request has come.
func (e *end) has(id uint64) bool {
	_, ok := e.done[id]
	return ok
}

// completion returns that of a request.
func (e *end) completion(id uint64) (verbs.WC, error) {
	for deadline := time.Now().Add(loopTimeout); ; {
		if wc, ok := e.done[id]; ok {
			delete(e.done, id)
			return wc, nil
		}
		found, err := e.poll()
		switch {
		case err != nil:
			return verbs.WC{}, err
		case !found && time.Now().After(deadline):
			return verbs.WC{}, fmt.Errorf("no completion within %v", loopTimeout)
		case !found:
			runtime.Gosched()
		}
	}
}

// succeed waits for the success of a request.
func (e *end) succeed(id uint64) (verbs.WC, error) {
	wc, err := e.completion(id)
	if err == nil {
		err = wc.Err()
	}
	return wc, err
}

// awaitEvent waits for the completion of a request by events alone. The CQ was armed before the
// request could complete.
func (e *end) awaitEvent(id uint64, solicited bool) error {
	for !e.has(id) {
		if err := e.ch.Wait(time.Now().Add(loopTimeout)); err != nil { // ends with the event
			return fmt.Errorf("no event: %w", err)
		}
		if err := e.cq.Arm(solicited); err != nil {
			return err
		}
		if _, err := e.poll(); err != nil {
			return err
		}
	}
	return nil
}

// sleep waits for an event of the completion channel, after the CQ was armed and found empty.
func (e *end) sleep() error {
	if err := e.cq.Arm(false); err != nil {
		return err
	}
	if found, err := e.poll(); found || err != nil {
		return err
	}
	return e.ch.Wait(time.Now().Add(loopTimeout))
}

// fill makes bytes that differ from place to place and from seed to seed.
func fill(b []byte, seed int) {
	x := uint32(seed)*2654435761 + 1
	for i := range b {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		b[i] = byte(x)
	}
}

// chooseGID returns the row of the table by which the two QPs find each other: on Ethernet that of
// RoCE v2 and IPv4, if there is one.
func chooseGID(table []verbs.GIDEntry) (verbs.GIDEntry, error) {
	if len(table) == 0 {
		return verbs.GIDEntry{}, errors.New("the port has no GID")
	}
	rank := func(g verbs.GIDEntry) int {
		switch {
		case g.Type == verbs.GIDTypeRoCEv2 && strings.HasPrefix(g.GID.String(), "::ffff:"):
			return 0
		case g.Type == verbs.GIDTypeRoCEv2:
			return 1
		}
		return 2
	}
	return slices.MinFunc(table, func(a, b verbs.GIDEntry) int { return rank(a) - rank(b) }), nil
}
