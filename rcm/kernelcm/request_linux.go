package kernelcm

import (
	"context"
	"fmt"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/handshake"
	"github.com/seed-b9b531af/ramjet/verbs"
)

// request is a peer whose REQ the kernel has taken and answered with
// MRA: the peer waits. The kernel does not tell if it goes away meanwhile;
// Accept fails then.
type request struct {
	id            *cmID
	device        device
	local, remote netip.AddrPort
	timeout       time.Duration
	ev            cmEvent
	answered      atomic.Bool
}

func newRequest(ev cmEvent, l *listener) (*request, error) {
	a, err := ev.conn.query()
	if err != nil {
		return nil, err
	}
	device, err := deviceOf(a)
	if err != nil {
		return nil, err
	}
	if err := l.fabric.uses(device); err != nil {
		return nil, err
	}
	return &request{id: ev.conn, device: device, local: a.local, remote: a.remote, timeout: l.timeout, ev: ev}, nil
}

func (r *request) Device() string             { return r.device.name }
func (r *request) Port() uint8                { return r.device.port }
func (r *request) PrivateData() []byte        { return r.ev.private }
func (r *request) LocalAddr() netip.AddrPort  { return r.local }
func (r *request) RemoteAddr() netip.AddrPort { return r.remote }
func (r *request) Peer() rcm.Peer             { return rcm.Peer{} }

func (r *request) Accept(ctx context.Context, qp *verbs.QP, p rcm.ConnParam) (rcm.Conn, error) {
	if r.answered.Swap(true) {
		return nil, fmt.Errorf("rcm: accept %v: %w: request was answered", r.remote, verbs.ErrInvalid)
	}
	c, err := r.accept(ctx, qp, p)
	if err != nil {
		r.device.drop(r.id)
		return nil, fmt.Errorf("rcm: accept %v over %s: %w", r.remote, r.device.name, err)
	}
	return c, nil
}

func (r *request) accept(ctx context.Context, qp *verbs.QP, p rcm.ConnParam) (rcm.Conn, error) {
	p, err := r.device.complete(ctx, qp, p, rcm.MaxReplyData)
	if err != nil {
		return nil, err
	}
	if err := r.id.toInit(qp, &p); err != nil {
		return nil, handshake.Failed(qp, gaveUp(err))
	}
	if err := r.handshake(ctx, qp, &p); err != nil {
		return nil, handshake.Failed(qp, err)
	}
	return newConn(r.id, qp, r.local, r.remote, r.ev.private), nil
}

// handshake brings qp from INIT to RTS, answers, and waits for the dialer.
func (r *request) handshake(ctx context.Context, qp *verbs.QP, p *rcm.ConnParam) error {
	depth := handshake.Agree(p, r.ev.depth, r.ev.resources)
	if r.device.transport != verbs.TransportIWARP {
		// The QP is at RTS before REP leaves: the peer may send as soon as
		// it has it.
		if err := r.id.toRTS(qp, p, depth); err != nil {
			return gaveUp(err)
		}
	}
	if err := r.id.accept(connParam(p, qp, depth)); err != nil {
		return gaveUp(err)
	}
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	ev, err := r.id.next(ctx) // ends with RTU, the kernel's timeout or ctx
	switch {
	case err != nil:
		return err
	case ev.kind == eventEstablished:
		if r.device.transport == verbs.TransportIWARP {
			entered(qp, verbs.QPStateRTS)
		}
		return nil
	case ev.kind == eventRejected:
		return fmt.Errorf("%w: %w", rejection(ev), syscall.ECONNRESET)
	}
	return handshakeError(ev)
}

func (r *request) Reject(privateData []byte) error {
	return r.rejectWith(privateData, rcm.MaxRejectData)
}

func (r *request) rejectWith(privateData []byte, most int) error {
	if err := handshake.CheckData(privateData, most); err != nil {
		return fmt.Errorf("rcm: reject %v: %w", r.remote, err)
	}
	if r.answered.Swap(true) {
		return fmt.Errorf("rcm: reject %v: %w: request was answered", r.remote, verbs.ErrInvalid)
	}
	err := r.id.reject(privateData)
	r.id.destroy()
	if err != nil {
		return fmt.Errorf("rcm: reject %v: %w", r.remote, gaveUp(err))
	}
	return nil
}

// refuseID rejects a request that Accept has not returned. If the peer is gone
// there is nobody to tell.
func refuseID(id *cmID, reason uint16) {
	_ = id.reject(handshake.Refusal(reason))
	id.destroy()
}
