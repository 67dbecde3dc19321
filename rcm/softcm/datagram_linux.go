package softcm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/handshake"
	"github.com/seed-b9b531af/ramjet/verbs"
)

// UD QPs. A lookup is one message, LOOKUP, and its answer, FOUND or REJ, over a bootstrap
// socket that has no other use. Listeners for datagrams have names of their own, so that
// an address may have one of each kind. They are met in the network namespace only, and
// beside no Unix socket: datagrams go to the GID of a device, which is a name in that
// namespace too.

// forDatagrams returns the fabric that finds UD QPs.
func (f *fabric) forDatagrams() (*fabric, error) {
	if f.socket != nil {
		return nil, fmt.Errorf("%w: no datagrams at a Unix socket: %w", rcm.ErrNoRoute, errors.ErrUnsupported)
	}
	return &fabric{device: f.device, allow: f.allow, datagrams: true}, nil
}

// ResolveDatagram connects to the listener of addr on this host and keeps the
// connection in the route.
func (f *fabric) ResolveDatagram(ctx context.Context, addr netip.AddrPort) (rcm.DatagramRoute, error) {
	r, err := f.resolveDatagram(ctx, addr)
	if err != nil {
		return nil, fmt.Errorf("rcm: resolve %v for datagrams: %w", addr, err)
	}
	return &datagramRoute{r}, nil
}

func (f *fabric) resolveDatagram(ctx context.Context, addr netip.AddrPort) (*route, error) {
	f, err := f.forDatagrams()
	if err != nil {
		return nil, err
	}
	return f.resolve(ctx, addr)
}

type datagramRoute struct{ r *route }

func (r *datagramRoute) Device() string             { return r.r.Device() }
func (r *datagramRoute) Port() uint8                { return r.r.Port() }
func (r *datagramRoute) LocalAddr() netip.Addr      { return r.r.LocalAddr() }
func (r *datagramRoute) RemoteAddr() netip.AddrPort { return r.r.RemoteAddr() }
func (r *datagramRoute) Close() error               { return r.r.Close() }

func (r *datagramRoute) Lookup(ctx context.Context, qp *verbs.QP, p rcm.DatagramParam) (rcm.Destination, error) {
	if r.r.used.Swap(true) {
		return rcm.Destination{}, fmt.Errorf("rcm: look up %v: %w: route was used or closed", r.r.remote, verbs.ErrInvalid)
	}
	defer r.r.close()
	to, err := r.lookup(ctx, qp, p)
	if err != nil {
		return rcm.Destination{}, fmt.Errorf("rcm: look up %v: %w", r.r.remote, err)
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
	started, err := start(qp, p.Prepare)
	if err != nil {
		return rcm.Destination{}, err
	}
	var found handshake.Message
	sock := r.r.sock.Load()
	err = sock.interruptible(ctx, func() error {
		ask := handshake.Message{Kind: handshake.KindLookup, Src: r.r.local, Dst: r.r.remote, Private: p.PrivateData}
		if err := sock.send(&ask); err != nil && !errors.Is(err, errHungUp) {
			return err
		}
		// A listener that closed the socket already may have said why.
		found, err = sock.expect(handshake.KindFound) // ends with the answer, hang-up or ctx
		return err
	})
	if err != nil && started {
		return rcm.Destination{}, handshake.Failed(qp, err)
	}
	if err != nil {
		return rcm.Destination{}, err
	}
	return destination(found.From.GID, found.From.QPN, found.Private), nil
}

// destination is where messages to a QP or a group go.
func destination(gid verbs.GID, qpn uint32, private []byte) rcm.Destination {
	return rcm.Destination{
		AV:  verbs.AddressVector{DGID: gid, IsGlobal: true, HopLimit: 1, Port: onlyPort},
		QPN: qpn, QKey: rcm.DatagramQKey, PrivateData: private,
	}
}

// start brings a UD QP from RESET to RTS, which started says, unless it is there.
func start(qp *verbs.QP, prepare func(*verbs.QP) error) (started bool, err error) {
	if _, err := localEndpoint(qp); err != nil {
		return false, err
	}
	begin := handshake.Datagrams{Port: onlyPort, QKey: rcm.DatagramQKey, Prepare: prepare}
	return begin.Start(qp)
}

// ListenDatagram makes the bootstrap socket of addr for datagrams.
func (f *fabric) ListenDatagram(addr netip.AddrPort, cfg rcm.ListenConfig) (rcm.DatagramListener, error) {
	f, err := f.forDatagrams()
	var l *listener
	if err == nil {
		l, err = f.listen(addr, cfg)
	}
	if err != nil {
		return nil, fmt.Errorf("rcm: listen on %v for datagrams: %w", addr, err)
	}
	return &datagramListener{l}, nil
}

type datagramListener struct{ l *listener }

func (l *datagramListener) Addr() netip.AddrPort   { return l.l.Addr() }
func (l *datagramListener) Stats() rcm.ListenStats { return l.l.Stats() }
func (l *datagramListener) Close() error           { return l.l.Close() }

func (l *datagramListener) Accept(ctx context.Context) (rcm.DatagramRequest, error) {
	r, err := l.l.next(ctx)
	if err != nil {
		return nil, err
	}
	return &datagramRequest{r}, nil
}

// datagramRequest is a peer that has sent its LOOKUP and waits for FOUND or REJ. That it
// goes away meanwhile is no error: nobody tells on other devices either.
type datagramRequest struct{ r *request }

func (r *datagramRequest) Device() string             { return r.r.Device() }
func (r *datagramRequest) Port() uint8                { return r.r.Port() }
func (r *datagramRequest) PrivateData() []byte        { return r.r.PrivateData() }
func (r *datagramRequest) LocalAddr() netip.AddrPort  { return r.r.LocalAddr() }
func (r *datagramRequest) RemoteAddr() netip.AddrPort { return r.r.RemoteAddr() }
func (r *datagramRequest) Peer() rcm.Peer             { return r.r.Peer() }

func (r *datagramRequest) Accept(qp *verbs.QP, p rcm.DatagramParam) error {
	if r.r.answered.Swap(true) {
		return fmt.Errorf("rcm: answer %v: %w: request was answered", r.RemoteAddr(), verbs.ErrInvalid)
	}
	defer r.r.sock.Close()
	if err := r.accept(qp, p); err != nil {
		return fmt.Errorf("rcm: answer %v: %w", r.RemoteAddr(), err)
	}
	return nil
}

func (r *datagramRequest) accept(qp *verbs.QP, p rcm.DatagramParam) error {
	if err := handshake.CheckData(p.PrivateData, rcm.MaxLookupReplyData); err != nil {
		return err
	}
	started, err := start(qp, p.Prepare)
	if err != nil {
		return err
	}
	local, err := localEndpoint(qp)
	if err == nil {
		local.PSN = 0
		err = r.tell(&handshake.Message{Kind: handshake.KindFound, From: local, Private: p.PrivateData})
	}
	if err != nil && started {
		return handshake.Failed(qp, err)
	}
	return err
}

func (r *datagramRequest) Reject(privateData []byte) error {
	if err := handshake.CheckData(privateData, rcm.MaxLookupReplyData); err != nil {
		return fmt.Errorf("rcm: reject %v: %w", r.RemoteAddr(), err)
	}
	if r.r.answered.Swap(true) {
		return fmt.Errorf("rcm: reject %v: %w: request was answered", r.RemoteAddr(), verbs.ErrInvalid)
	}
	defer r.r.sock.Close()
	err := r.tell(&handshake.Message{Kind: handshake.KindReject, Reason: rcm.ReasonConsumer, Private: privateData})
	if err != nil {
		return fmt.Errorf("rcm: reject %v: %w", r.RemoteAddr(), err)
	}
	return nil
}

// tell answers a peer that may be gone.
func (r *datagramRequest) tell(m *handshake.Message) error {
	if err := r.r.sock.send(m); !errors.Is(err, errHungUp) {
		return err
	}
	return nil
}

// ResolveGroup returns the way to a multicast group, whose members are processes of this
// host and user.
func (f *fabric) ResolveGroup(ctx context.Context, group netip.Addr) (rcm.GroupRoute, error) {
	f, err := f.forDatagrams()
	switch {
	case ctx.Err() != nil:
		err = handshake.ContextError(ctx)
	case err == nil && !group.IsMulticast():
		err = fmt.Errorf("%w: not a multicast address", verbs.ErrInvalid)
	}
	if err != nil {
		return nil, fmt.Errorf("rcm: resolve group %v: %w", group, err)
	}
	return &groupRoute{device: f.device, group: group.Unmap()}, nil
}

// groupRoute is the way to a group, for which there is nothing to hold.
type groupRoute struct {
	device string
	group  netip.Addr
	used   atomic.Bool // Join or Close was called
}

func (r *groupRoute) Device() string    { return r.device }
func (r *groupRoute) Port() uint8       { return onlyPort }
func (r *groupRoute) Group() netip.Addr { return r.group }

func (r *groupRoute) LocalAddr() netip.Addr {
	if r.group.Is4() {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.IPv6Loopback()
}

func (r *groupRoute) Close() error {
	r.used.Store(true)
	return nil
}

func (r *groupRoute) Join(ctx context.Context, qp *verbs.QP, p rcm.JoinParam) (rcm.Membership, error) {
	if r.used.Swap(true) {
		return nil, fmt.Errorf("rcm: join %v: %w: route was used or closed", r.group, verbs.ErrInvalid)
	}
	m, err := r.join(ctx, qp, p)
	if err != nil {
		return nil, fmt.Errorf("rcm: join %v: %w", r.group, err)
	}
	return m, nil
}

// groupQPN is the QP number of all groups.
const groupQPN = 1<<24 - 1

func (r *groupRoute) join(ctx context.Context, qp *verbs.QP, p rcm.JoinParam) (*handshake.Membership, error) {
	if ctx.Err() != nil {
		return nil, handshake.ContextError(ctx)
	}
	started, err := start(qp, p.Prepare)
	if err != nil {
		return nil, err
	}
	m, err := handshake.Attach(qp, r.group, destination(r.group.As16(), groupQPN, nil), p, func() {})
	if err != nil && started {
		return nil, handshake.Failed(qp, err)
	}
	return m, err
}
