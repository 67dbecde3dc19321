package kernelcm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/handshake"
	"github.com/seed-b9b531af/ramjet/verbs"
	"golang.org/x/sys/unix"
)

// Multicast groups. On InfiniBand the subnet administrator has a port join a group and
// tells its LID and its Q_Key; on RoCE the kernel joins the IP group on the interface,
// which tells the switches, and all groups have one Q_Key. The QP becomes a member
// of the group at its device by a verb. An id has one membership and ends with it.

// ResolveGroup asks the kernel for the device over which a group is reached: the one of
// the fabric, or that of the routing table.
func (f *fabric) ResolveGroup(ctx context.Context, group netip.Addr) (rcm.GroupRoute, error) {
	r, err := f.resolveGroup(ctx, group.Unmap())
	if err != nil {
		return nil, fmt.Errorf("rcm: resolve group %v: %w", group, err)
	}
	return &groupRoute{r}, nil
}

func (f *fabric) resolveGroup(ctx context.Context, group netip.Addr) (*resolved, error) {
	switch {
	case ctx.Err() != nil:
		return nil, handshake.ContextError(ctx)
	case !group.IsMulticast():
		return nil, fmt.Errorf("%w: not a multicast address", verbs.ErrInvalid)
	}
	if err := f.anyDevice(); err != nil {
		return nil, err
	}
	to := netip.AddrPortFrom(group, 0)
	if f.cfg.Source.IsValid() {
		return f.resolveFrom(ctx, f.cfg.Source, to, portSpaceUDP)
	}
	// A group is on every interface. With an address of one the routing table need
	// not have it.
	sources, err := f.sources(group)
	if err != nil {
		return nil, err
	}
	for _, src := range sources {
		var r *resolved
		if r, err = f.resolveFrom(ctx, src, to, portSpaceUDP); err == nil {
			return r, nil
		}
	}
	if err != nil {
		return nil, err
	}
	return f.resolveFrom(ctx, netip.Addr{}, to, portSpaceUDP)
}

// groupRoute is the way to a group.
type groupRoute struct{ *resolved }

func (r *groupRoute) Group() netip.Addr { return r.remote.Addr() }

func (r *groupRoute) Join(ctx context.Context, qp *verbs.QP, p rcm.JoinParam) (rcm.Membership, error) {
	if r.used.Swap(true) {
		return nil, fmt.Errorf("rcm: join %v: %w: route was used or closed", r.Group(), verbs.ErrInvalid)
	}
	m, err := r.join(ctx, qp, p)
	if err != nil {
		r.id.destroy() // and with it the membership
		return nil, fmt.Errorf("rcm: join %v over %s: %w", r.Group(), r.device.name, err)
	}
	return m, nil
}

func (r *groupRoute) join(ctx context.Context, qp *verbs.QP, p rcm.JoinParam) (*handshake.Membership, error) {
	if qp.Attr().Type != verbs.QPTypeUD || qp.PD().Context().Name() != r.device.name {
		return nil, fmt.Errorf("%w: needs a UD QP on %s", verbs.ErrInvalid, r.device.name)
	}
	if ctx.Err() != nil {
		return nil, handshake.ContextError(ctx)
	}
	to, err := r.joinPort(ctx, p.SendOnly)
	if err != nil {
		return nil, err
	}
	started, err := r.device.start(r.id, qp, to.QKey, p.Prepare)
	if err != nil {
		return nil, err
	}
	m, err := handshake.Attach(qp, r.Group(), to, p, r.id.destroy)
	if err != nil {
		if started {
			return nil, handshake.Failed(qp, err)
		}
		return nil, err
	}
	r.id.handle(func(ev cmEvent) { memberEvent(m, ev) })
	return m, nil
}

// memberEvent is called by the reader of events. What it leads to is done on a goroutine
// of the moment.
func memberEvent(m *handshake.Membership, ev cmEvent) {
	switch ev.kind {
	case eventMembershipError:
		go m.End(fmt.Errorf("the network has ended it: %w", syscall.ECONNRESET))
	case eventDeviceRemoval:
		go m.End(fmt.Errorf("%w: %w", rcm.ErrDeviceRemoved, syscall.ECONNRESET))
	case eventLost:
		go m.End(fmt.Errorf("%w: %w", ev.lost, syscall.ECONNRESET))
	}
}

// joinPort makes the port a member, and returns where messages to the group go.
func (r *groupRoute) joinPort(ctx context.Context, sendOnly bool) (rcm.Destination, error) {
	flags := uint16(0)
	if sendOnly {
		flags = joinSendOnly
	}
	if err := r.id.join(r.Group(), flags); err != nil {
		return rcm.Destination{}, joinError(err)
	}
	// ends with the subnet administrator's answer, the kernel's timeout or ctx
	ev, err := r.id.next(ctx)
	switch {
	case err != nil:
		return rcm.Destination{}, err
	case ev.kind == eventJoined:
		return ev.datagram, nil
	}
	return rcm.Destination{}, handshakeError(ev)
}

// unsupported is the errno ENOTSUPP, which is the kernel's own and has no name outside.
const unsupported = unix.Errno(524)

// joinError says what a JOIN_MCAST that failed means.
func joinError(err error) error {
	switch {
	case errors.Is(err, unsupported): // cma_iboe_join_multicast
		return fmt.Errorf("%w: RoCE v2 has groups of IPv4 only: %w", verbs.ErrUnsupported, err)
	case errors.Is(err, unix.EOPNOTSUPP): // cma_join_ib_multicast
		return fmt.Errorf("%w: the subnet manager knows no members that only send: %w", verbs.ErrUnsupported, err)
	}
	return err
}
