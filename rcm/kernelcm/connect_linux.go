package kernelcm

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"unsafe"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/handshake"
	"github.com/seed-b9b531af/ramjet/verbs"
	"golang.org/x/sys/unix"
)

// The dialer's second half. On InfiniBand and RoCE: REQ with CONNECT, the
// peer's REP comes as CONNECT_RESPONSE, the QP goes to RTS, and RTU ends the
// handshake. On iWARP the kernel does all of it, and reports ESTABLISHED.

func (r *route) Connect(ctx context.Context, qp *verbs.QP, p rcm.ConnParam) (rcm.Conn, error) {
	if r.used.Swap(true) {
		return nil, fmt.Errorf("rcm: connect %v: %w: route was used or closed", r.remote, verbs.ErrInvalid)
	}
	c, err := r.connect(ctx, qp, p)
	if err != nil {
		r.device.drop(r.id)
		return nil, fmt.Errorf("rcm: connect %v over %s: %w", r.remote, r.device.name, err)
	}
	return c, nil
}

// drop destroys an id whose connection did not come about. On iWARP that may
// wait for the handshake to time out in the kernel, 10 s with siw, so nobody
// waits for it.
func (d device) drop(id *cmID) {
	if d.transport == verbs.TransportIWARP {
		go id.destroy()
		return
	}
	id.destroy()
}

func (r *route) connect(ctx context.Context, qp *verbs.QP, p rcm.ConnParam) (rcm.Conn, error) {
	p, err := r.device.complete(ctx, qp, p, rcm.MaxRequestData)
	if err != nil {
		return nil, err
	}
	if err := r.id.toInit(qp, &p); err != nil {
		return nil, handshake.Failed(qp, err)
	}
	private, err := r.handshake(ctx, qp, &p)
	if err != nil {
		return nil, handshake.Failed(qp, err)
	}
	c := newConn(r.id, qp, r.local, r.remote, private)
	c.postEmptyWrites()
	return c, nil
}

// handshake brings qp from INIT to RTS and returns what the peer said.
func (r *route) handshake(ctx context.Context, qp *verbs.QP, p *rcm.ConnParam) ([]byte, error) {
	if err := r.request(ctx, qp, p); err != nil {
		return nil, err
	}
	ev, err := r.id.next(ctx) // ends with the peer's answer, the kernel's timeout or ctx
	if err != nil {
		return nil, err
	}
	switch ev.kind {
	case eventConnectResponse:
		if err := r.id.toRTS(qp, p, handshake.Agree(p, ev.depth, ev.resources)); err != nil {
			return nil, err
		}
		if err := r.id.establish(); err != nil {
			return nil, gaveUp(err)
		}
		return ev.private, nil
	case eventEstablished:
		entered(qp, verbs.QPStateRTS)
		return ev.private, nil
	case eventRejected:
		return nil, rejection(ev)
	}
	return nil, handshakeError(ev)
}

// iwarpPorts is how many local ports are tried on iWARP.
const iwarpPorts = 5

// request sends the request.
func (r *route) request(ctx context.Context, qp *verbs.QP, p *rcm.ConnParam) error {
	param := connParam(p, qp, handshake.ReadDepth{Out: p.InitiatorDepth, In: p.ResponderResources})
	if r.device.transport != verbs.TransportIWARP {
		return r.id.connect(param)
	}
	for try := 1; ; try++ {
		err := connectTCP(ctx, r.id, param)
		if try == iwarpPorts || !errors.Is(err, unix.EADDRINUSE) && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return connectError(err)
		}
		// rdma_cm has chosen a local port that a connection of TCP has.
		again, err := r.fabric.resolveFrom(ctx, r.source, r.remote, r.space)
		if err != nil {
			return err
		}
		r.id.destroy()
		r.id, r.local = again.id, again.local
	}
}

// connectTCP sends the request on iWARP. The kernel waits for TCP to connect,
// and cannot be told to stop; the goroutine here waits in our place. Once ctx has ended it
// sends none: the caller closes the QP then, whose number another QP has next. One that it was
// about to send may reach the kernel after the return: nothing tells when it has.
func connectTCP(ctx context.Context, id *cmID, param *ucmConnParam) error {
	sent := make(chan error, 1)
	id.busy.Go(func() {
		sent <- withoutSignals(func() error {
			if ctx.Err() != nil {
				return handshake.ContextError(ctx)
			}
			return id.connect(param) // ends as TCP does
		})
	})
	// Ends with TCP's success or failure, or ctx.
	select {
	case err := <-sent:
		return err
	case <-ctx.Done():
		return handshake.ContextError(ctx)
	}
}

// withoutSignals calls f while the thread takes no signals, those with which
// Go's scheduler interrupts goroutines above all. siw breaks off a connect that a
// signal interrupts, and begins again. A siw listener that sees a connection end
// before it has taken it is lost without an event. Closing that listener can crash
// its kernel (siw_cm_llp_state_change takes the end for the listener's, and
// siw_destroy_listen frees what is freed; 6.1 and 6.12).
func withoutSignals(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, old unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	// By signal 33 the runtime has every thread do a system call (setuid), and
	// waits for all.
	bits := int(unsafe.Sizeof(all.Val[0])) * 8
	all.Val[32/bits] &^= 1 << (32 % bits)
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &old); err != nil {
		return fmt.Errorf("block signals: %w", err)
	}
	defer unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil)
	return f()
}

// connectError gives TCP's refusal the form of a reject.
func connectError(err error) error {
	if errors.Is(err, unix.ECONNREFUSED) {
		return &rcm.RejectedError{Reason: rcm.ReasonInvalidService}
	}
	return err
}

// handshakeError is why a handshake failed without an answer of the peer.
func handshakeError(ev cmEvent) error {
	var errno error
	if ev.status < 0 {
		errno = unix.Errno(-ev.status)
	}
	switch ev.kind {
	case eventUnreachable:
		return fmt.Errorf("%w: the peer's connection manager does not answer: %w", rcm.ErrTimeout, syscall.ETIMEDOUT)
	case eventDeviceRemoval:
		return fmt.Errorf("%w: %w", rcm.ErrDeviceRemoved, syscall.ECONNRESET)
	case eventDisconnected:
		return fmt.Errorf("%w during the handshake: %w", rcm.ErrDisconnected, syscall.ECONNRESET)
	}
	if errno != nil {
		return fmt.Errorf("%v: %w", ev.kind, errno)
	}
	return fmt.Errorf("%w: event %v, status %d", rcm.ErrMalformed, ev.kind, ev.status)
}

// gaveUp says what a command means that failed because the peer has ended the
// handshake.
func gaveUp(err error) error {
	if isGone(err) {
		return fmt.Errorf("peer gave up: %w: %w", syscall.ECONNRESET, err)
	}
	return err
}

// rejection is the error of a REJECTED. On iWARP its status is an errno:
// ECONNREFUSED where nobody listens, ECONNRESET where the peer refused.
func rejection(ev cmEvent) error {
	switch ev.status {
	case -int32(unix.ECONNREFUSED):
		return &rcm.RejectedError{Reason: rcm.ReasonInvalidService}
	case rcm.ReasonConsumer, -int32(unix.ECONNRESET):
		return consumerRejection(ev.private)
	}
	if ev.status < 0 {
		return handshakeError(ev)
	}
	return &rcm.RejectedError{Reason: int(ev.status)}
}

// consumerRejection is the refusal of a program, or of a listener of ours.
func consumerRejection(private []byte) error {
	e := &rcm.RejectedError{Reason: handshake.RefusalReason(private)}
	if e.Reason == rcm.ReasonConsumer {
		e.PrivateData = private
	}
	return e
}
