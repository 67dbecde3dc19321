package rcm

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// The dialer's side: Resolve connects the bootstrap socket, Connect sends REQ
// over it, takes REP, moves the QP and sends RTU.

// Resolve connects to the listener of addr on this host and keeps the
// connection in the Route.
func (f *softFabric) Resolve(ctx context.Context, addr netip.AddrPort) (Route, error) {
	r, err := f.resolve(ctx, addr)
	if err != nil {
		return nil, fmt.Errorf("rcm: resolve %v: %w", addr, err)
	}
	return r, nil
}

func (f *softFabric) resolve(ctx context.Context, addr netip.AddrPort) (*softRoute, error) {
	if ctx.Err() != nil {
		return nil, contextError(ctx)
	}
	target, err := softTarget(addr)
	if err != nil {
		return nil, err
	}
	names := softNames(target)
	sock, err := dialSoft(names[:], f.allow)
	if err != nil {
		return nil, err
	}
	return &softRoute{
		device: f.device,
		local:  netip.AddrPortFrom(sourceFor(target.Addr()), sourcePort()),
		remote: target,
		sock:   sock,
	}, nil
}

// The ports that TCP would choose from by default
// (net.ipv4.ip_local_port_range). A software connection needs no port; it has
// one so that its addresses look like TCP's and differ within a process.
const (
	firstSourcePort = 32768
	sourcePorts     = 60999 - firstSourcePort + 1
)

var nextSourcePort atomic.Uint32

func init() { nextSourcePort.Store(rand.Uint32()) }

func sourcePort() uint16 { return uint16(firstSourcePort + nextSourcePort.Add(1)%sourcePorts) }

type softRoute struct {
	device string
	local  netip.AddrPort
	remote netip.AddrPort
	sock   *socket
	used   atomic.Bool // Connect or Close has taken sock
}

func (r *softRoute) Device() string             { return r.device }
func (r *softRoute) Port() uint8                { return softPort }
func (r *softRoute) LocalAddr() netip.Addr      { return r.local.Addr() }
func (r *softRoute) RemoteAddr() netip.AddrPort { return r.remote }

func (r *softRoute) Close() error {
	if r.used.Swap(true) {
		return nil
	}
	return r.sock.Close()
}

func (r *softRoute) Connect(ctx context.Context, qp *verbs.QP, p ConnParam) (Conn, error) {
	if r.used.Swap(true) {
		return nil, fmt.Errorf("rcm: connect %v: %w: route was used or closed", r.remote, verbs.ErrInvalid)
	}
	c, err := r.connect(ctx, qp, p)
	if err != nil {
		r.sock.Close()
		return nil, fmt.Errorf("rcm: connect %v: %w", r.remote, err)
	}
	return c, nil
}

func (r *softRoute) connect(ctx context.Context, qp *verbs.QP, p ConnParam) (Conn, error) {
	p, err := p.onThisHost().complete(qp, MaxRequestData)
	if err != nil {
		return nil, err
	}
	local, err := localEndpoint(qp)
	if err != nil {
		return nil, err
	}
	if err := toInit(qp, &p); err != nil {
		return nil, failed(qp, err)
	}
	var rep message
	err = r.sock.interruptible(ctx, func() error {
		if rep, err = r.exchange(&p, local); err != nil {
			return err
		}
		if err := toRTS(qp, &p, local, rep.from, p.agree(rep.resources, rep.depth)); err != nil {
			return err
		}
		return r.sock.send(&message{kind: kindReady})
	})
	if err != nil {
		return nil, failed(qp, err)
	}
	return newSoftConn(r.sock, qp, r.local, r.remote, rep.private), nil
}

// exchange sends REQ and waits for the answer; the wait ends with the answer,
// the peer's hang-up or interruptible.
func (r *softRoute) exchange(p *ConnParam, local endpoint) (message, error) {
	err := r.sock.send(&message{
		kind: kindRequest, from: local, resources: p.ResponderResources, depth: p.InitiatorDepth,
		src: r.local, dst: r.remote, private: p.PrivateData,
	})
	if err != nil && !errors.Is(err, errHungUp) {
		return message{}, err
	}
	// A listener that closed the socket already may have said why.
	return r.sock.expect(kindReply)
}

// failed moves the QP of a connection that did not come about to ERR and
// returns err.
func failed(qp *verbs.QP, err error) error {
	// The QP may be in RESET or closed; then there is nothing to stop.
	_ = qp.Fail()
	return err
}
