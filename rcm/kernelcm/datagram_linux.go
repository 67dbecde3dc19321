package kernelcm

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/handshake"
	"github.com/seed-b9b531af/ramjet/verbs"
)

// Lookup is one question, SIDR_REQ, which the kernel repeats until there is an
// answer, SIDR_REP: CONNECT sends the one and ACCEPT or REJECT the other, and
// ESTABLISHED or UNREACHABLE say what it was. Neither side's id has a use after
// that. The QP of the side that asks is not in the messages, and the Q_Key of the
// other is always rcm.DatagramQKey: of port space UDP the kernel takes none from
// programs, and refuses another in an answer (ucma_copy_conn_param, cma_set_qkey).

// ResolveDatagram asks the kernel for the device that leads to addr.
func (f *fabric) ResolveDatagram(ctx context.Context, addr netip.AddrPort) (rcm.DatagramRoute, error) {
	r, err := f.resolve(ctx, addr, portSpaceUDP)
	if err != nil {
		return nil, fmt.Errorf("rcm: resolve %v for datagrams: %w", addr, err)
	}
	return &datagramRoute{r}, nil
}

// datagramRoute is the way to a listener for datagrams.
type datagramRoute struct{ *resolved }

func (r *datagramRoute) Lookup(ctx context.Context, qp *verbs.QP, p rcm.DatagramParam) (rcm.Destination, error) {
	if r.used.Swap(true) {
		return rcm.Destination{}, fmt.Errorf("rcm: look up %v: %w: route was used or closed", r.remote, verbs.ErrInvalid)
	}
	defer r.id.destroy()
	to, err := r.lookup(ctx, qp, p)
	if err != nil {
		return rcm.Destination{}, fmt.Errorf("rcm: look up %v over %s: %w", r.remote, r.device.name, err)
	}
	return to, nil
}

func (r *datagramRoute) lookup(ctx context.Context, qp *verbs.QP, p rcm.DatagramParam) (rcm.Destination, error) {
	if err := handshake.CheckData(p.PrivateData, rcm.MaxLookupData); err != nil {
		return rcm.Destination{}, err
	}
	if ctx.Err() != nil {
		return rcm.Destination{}, handshake.ContextError(ctx)
	}
	started, err := r.device.start(r.id, qp, rcm.DatagramQKey, p.Prepare)
	if err != nil {
		return rcm.Destination{}, err
	}
	to, err := r.ask(ctx, qp, p.PrivateData)
	if err != nil && started {
		return rcm.Destination{}, handshake.Failed(qp, err)
	}
	return to, err
}

// ask sends the question and waits for the answer.
func (r *datagramRoute) ask(ctx context.Context, qp *verbs.QP, private []byte) (rcm.Destination, error) {
	if err := r.id.connect(datagramParam(qp, private)); err != nil {
		return rcm.Destination{}, err
	}
	ev, err := r.id.next(ctx) // ends with the peer's answer, the kernel's timeout or ctx
	if err != nil {
		return rcm.Destination{}, err
	}
	switch {
	case ev.kind == eventEstablished:
		return ev.datagram, nil
	case ev.kind == eventUnreachable && ev.status > 0:
		return rcm.Destination{}, refusal(ev)
	case ev.kind == eventAddrError:
		return rcm.Destination{}, fmt.Errorf("%w: the peer's QP has another Q_Key than %#x", rcm.ErrMalformed, rcm.DatagramQKey)
	}
	return rcm.Destination{}, handshakeError(ev)
}

// Status of a SIDR_REP (enum ib_cm_sidr_status, rdma/ib_cm.h of the kernel).
const (
	sidrUnsupported = 1 // nobody listens
	sidrReject      = 2
)

// refusal is the error of an answer that is none.
func refusal(ev cmEvent) error {
	switch ev.status {
	case sidrUnsupported:
		return &rcm.RejectedError{Reason: rcm.ReasonInvalidService}
	case sidrReject:
		return consumerRejection(ev.datagram.PrivateData)
	}
	return fmt.Errorf("%w: answer with status %d", rcm.ErrMalformed, ev.status)
}

// datagramParam is what CONNECT and ACCEPT carry for UD QPs.
func datagramParam(qp *verbs.QP, private []byte) *ucmConnParam {
	c := &ucmConnParam{qpNum: qp.Num(), privateDataLen: uint8(len(private)), valid: 1}
	copy(c.privateData[:], private)
	return c
}

// start brings a UD QP from RESET to RTS, which started says, unless it is there.
func (d device) start(id *cmID, qp *verbs.QP, qkey uint32, prepare func(*verbs.QP) error) (started bool, err error) {
	if t := qp.Attr().Type; t != verbs.QPTypeUD {
		return false, fmt.Errorf("%w: QP of type %v, datagrams need a UD QP", verbs.ErrInvalid, t)
	}
	if name := qp.PD().Context().Name(); name != d.name {
		return false, fmt.Errorf("%w: QP on %s, the address is on %s", verbs.ErrInvalid, name, d.name)
	}
	a, err := id.qpAttr(uint32(verbs.QPStateInit))
	if err != nil {
		return false, err
	}
	begin := handshake.Datagrams{PKeyIndex: a.pkeyIndex, Port: a.port, QKey: qkey, Prepare: prepare}
	return begin.Start(qp)
}

// ListenDatagram makes ids that listen on addr.
func (f *fabric) ListenDatagram(addr netip.AddrPort, cfg rcm.ListenConfig) (rcm.DatagramListener, error) {
	l, err := f.listen(addr, cfg, portSpaceUDP)
	if err != nil {
		return nil, fmt.Errorf("rcm: listen on %v for datagrams: %w", addr, err)
	}
	return &datagramListener{l}, nil
}

type datagramListener struct{ *listener }

func (l *datagramListener) Accept(ctx context.Context) (rcm.DatagramRequest, error) {
	r, err := l.backlog.Take(ctx)
	if err != nil {
		return nil, err
	}
	return &datagramRequest{r}, nil
}

// datagramRequest is a question that the kernel has taken. The kernel tells nobody if the
// peer goes away meanwhile, nor whether it gets the answer.
type datagramRequest struct{ *request }

func (r *datagramRequest) PrivateData() []byte { return r.ev.datagram.PrivateData }

func (r *datagramRequest) Accept(qp *verbs.QP, p rcm.DatagramParam) error {
	if r.answered.Swap(true) {
		return fmt.Errorf("rcm: answer %v: %w: request was answered", r.remote, verbs.ErrInvalid)
	}
	defer r.id.destroy()
	if err := r.accept(qp, p); err != nil {
		return fmt.Errorf("rcm: answer %v over %s: %w", r.remote, r.device.name, err)
	}
	return nil
}

func (r *datagramRequest) accept(qp *verbs.QP, p rcm.DatagramParam) error {
	if err := handshake.CheckData(p.PrivateData, rcm.MaxLookupReplyData); err != nil {
		return err
	}
	started, err := r.device.start(r.id, qp, rcm.DatagramQKey, p.Prepare)
	if err != nil {
		return err
	}
	err = r.id.accept(datagramParam(qp, p.PrivateData))
	if err != nil && started {
		return handshake.Failed(qp, gaveUp(err))
	}
	return gaveUp(err)
}

func (r *datagramRequest) Reject(privateData []byte) error {
	return r.rejectWith(privateData, rcm.MaxLookupReplyData)
}
