package softcm

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"sync/atomic"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/handshake"
	"github.com/seed-b9b531af/ramjet/verbs"
)

// request is a peer that has sent its REQ and waits for REP or REJ.
type request struct {
	l        *listener
	sock     *socket
	req      handshake.Message
	answered atomic.Bool
}

func (r *request) Device() string             { return r.l.device }
func (r *request) Port() uint8                { return onlyPort }
func (r *request) PrivateData() []byte        { return r.req.Private }
func (r *request) LocalAddr() netip.AddrPort  { return r.req.Dst }
func (r *request) RemoteAddr() netip.AddrPort { return r.req.Src }
func (r *request) Peer() rcm.Peer             { return r.sock.peer() }

func (r *request) Accept(ctx context.Context, qp *verbs.QP, p rcm.ConnParam) (rcm.Conn, error) {
	if r.answered.Swap(true) {
		return nil, fmt.Errorf("rcm: accept %v: %w: request was answered", r.req.Src, verbs.ErrInvalid)
	}
	c, err := r.accept(ctx, qp, p)
	if err != nil {
		r.sock.Close()
		return nil, fmt.Errorf("rcm: accept %v: %w", r.req.Src, err)
	}
	return c, nil
}

func (r *request) accept(ctx context.Context, qp *verbs.QP, p rcm.ConnParam) (rcm.Conn, error) {
	p, err := handshake.Complete(withTimeout(p), qp, rcm.MaxReplyData)
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, handshake.ContextError(ctx)
	}
	local, err := localEndpoint(qp)
	if err != nil {
		return nil, err
	}
	depth := handshake.Agree(&p, r.req.Resources, r.req.Depth)
	if err := toInit(qp, &p); err != nil {
		return nil, handshake.Failed(qp, err)
	}
	c, err := newConn(qp, false, r.req.Dst, r.req.Src)
	if err != nil {
		return nil, handshake.Failed(qp, err)
	}
	// Not in a dial: there the kernel may name the process that has handed its listener over.
	if c.driver.IsLocal(r.req.From.GID) && r.sock.Peer().PID != os.Getpid() {
		c.abandon()
		return nil, handshake.Failed(qp, fmt.Errorf("%w: REQ of process %d with a QP of this one", rcm.ErrMalformed, r.sock.Peer().PID))
	}
	// The QP is at RTS before REP leaves: the peer may send as soon as it
	// has it.
	if err := toRTS(qp, &p, local, r.req.From, depth); err != nil {
		c.abandon()
		return nil, handshake.Failed(qp, err)
	}
	ctx, cancel := context.WithTimeout(ctx, r.l.timeout)
	defer cancel()
	err = r.sock.interruptible(ctx, func() error {
		rep := handshake.Message{Kind: handshake.KindReply, From: local, Resources: depth.In, Depth: depth.Out, Private: p.PrivateData}
		if err := r.sock.send(&rep); err != nil {
			return err
		}
		_, err := r.sock.expect(handshake.KindReady) // ends with RTU, hang-up or ctx
		return err
	})
	if err != nil {
		c.abandon()
		return nil, handshake.Failed(qp, err)
	}
	c.establish(r.sock, r.req.Private)
	return c, nil
}

func (r *request) Reject(privateData []byte) error {
	if len(privateData) > rcm.MaxRejectData {
		return fmt.Errorf("rcm: reject %v: %w: %d bytes of private data, at most %d",
			r.req.Src, verbs.ErrInvalid, len(privateData), rcm.MaxRejectData)
	}
	if r.answered.Swap(true) {
		return fmt.Errorf("rcm: reject %v: %w: request was answered", r.req.Src, verbs.ErrInvalid)
	}
	err := r.sock.send(&handshake.Message{Kind: handshake.KindReject, Reason: rcm.ReasonConsumer, Private: privateData})
	r.sock.Close()
	if err != nil {
		return fmt.Errorf("rcm: reject %v: %w", r.req.Src, err)
	}
	return nil
}

// Withdraw is Reject for a listener that was closed: the peer is told that
// nobody listens any more.
func (r *request) Withdraw() error {
	if r.answered.Swap(true) {
		return fmt.Errorf("rcm: reject %v: %w: request was answered", r.req.Src, verbs.ErrInvalid)
	}
	r.refuse(rcm.ReasonInvalidService)
	return nil
}

func (r *request) refuse(reason uint16) { refuse(r.sock, reason) }

// refuse tells a peer why it is not served and hangs up. If the peer is gone
// there is nobody to tell.
func refuse(sock *socket, reason uint16) { sock.Refuse(handshake.Refusal(reason)) }
