package rcm

import (
	"context"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// softRequest is a peer that has sent its REQ and waits for REP or REJ.
type softRequest struct {
	device   string
	timeout  time.Duration
	sock     *socket
	req      message
	answered atomic.Bool
}

func (r *softRequest) Device() string             { return r.device }
func (r *softRequest) Port() uint8                { return softPort }
func (r *softRequest) PrivateData() []byte        { return r.req.private }
func (r *softRequest) LocalAddr() netip.AddrPort  { return r.req.dst }
func (r *softRequest) RemoteAddr() netip.AddrPort { return r.req.src }
func (r *softRequest) Peer() Peer                 { return r.sock.peer() }

func (r *softRequest) Accept(ctx context.Context, qp *verbs.QP, p ConnParam) (Conn, error) {
	if r.answered.Swap(true) {
		return nil, fmt.Errorf("rcm: accept %v: %w: request was answered", r.req.src, verbs.ErrInvalid)
	}
	c, err := r.accept(ctx, qp, p)
	if err != nil {
		r.sock.Close()
		return nil, fmt.Errorf("rcm: accept %v: %w", r.req.src, err)
	}
	return c, nil
}

func (r *softRequest) accept(ctx context.Context, qp *verbs.QP, p ConnParam) (Conn, error) {
	p, err := p.onThisHost().complete(qp, MaxReplyData)
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, contextError(ctx)
	}
	local, err := localEndpoint(qp)
	if err != nil {
		return nil, err
	}
	depth := p.agree(r.req.resources, r.req.depth)
	if err := toInit(qp, &p); err != nil {
		return nil, failed(qp, err)
	}
	// The QP is at RTS before REP leaves: the peer may send as soon as it
	// has it.
	if err := toRTS(qp, &p, local, r.req.from, depth); err != nil {
		return nil, failed(qp, err)
	}
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	err = r.sock.interruptible(ctx, func() error {
		rep := message{kind: kindReply, from: local, resources: depth.in, depth: depth.out, private: p.PrivateData}
		if err := r.sock.send(&rep); err != nil {
			return err
		}
		_, err := r.sock.expect(kindReady) // ends with RTU, hang-up or ctx
		return err
	})
	if err != nil {
		return nil, failed(qp, err)
	}
	return newSoftConn(r.sock, qp, r.req.dst, r.req.src, r.req.private), nil
}

func (r *softRequest) Reject(privateData []byte) error {
	if len(privateData) > MaxRejectData {
		return fmt.Errorf("rcm: reject %v: %w: %d bytes of private data, at most %d",
			r.req.src, verbs.ErrInvalid, len(privateData), MaxRejectData)
	}
	if r.answered.Swap(true) {
		return fmt.Errorf("rcm: reject %v: %w: request was answered", r.req.src, verbs.ErrInvalid)
	}
	err := r.sock.send(&message{kind: kindReject, reason: ReasonConsumer, private: privateData})
	r.sock.Close()
	if err != nil {
		return fmt.Errorf("rcm: reject %v: %w", r.req.src, err)
	}
	return nil
}

// Withdraw is Reject for a listener that was closed: the peer is told that
// nobody listens any more.
func (r *softRequest) Withdraw() error {
	if r.answered.Swap(true) {
		return fmt.Errorf("rcm: reject %v: %w: request was answered", r.req.src, verbs.ErrInvalid)
	}
	r.refuse(ReasonInvalidService)
	return nil
}

func (r *softRequest) refuse(reason uint16) { refuse(r.sock, reason) }

// refuse tells a peer why it is not served and hangs up. If the peer is gone
// there is nobody to tell.
func refuse(sock *socket, reason uint16) { sock.Refuse(denial(reason)) }

func denial(reason uint16) []byte {
	return (&message{kind: kindReject, reason: reason}).appendTo(nil)
}
