package kernelcm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/handshake"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
	"golang.org/x/sys/unix"
)

// The dialer's first half: rdma_cm asks the routing table and the neighbors
// which interface leads to an address, and which device is on it. Whether
// somebody listens there is not known before Connect.

// resolveTimeout bounds each step of Resolve where ctx has no deadline.
const resolveTimeout = 5 * time.Second

// Resolve asks the kernel for the device that leads to addr.
func (f *fabric) Resolve(ctx context.Context, addr netip.AddrPort) (rcm.Route, error) {
	r, err := f.resolve(ctx, addr, portSpaceTCP)
	if err != nil {
		return nil, fmt.Errorf("rcm: resolve %v: %w", addr, err)
	}
	return &route{r}, nil
}

// Reaches says, without asking anybody but sysfs, why no device of the fabric
// can reach addr, nil if one may. The error wraps ErrNoRoute.
func (f *fabric) Reaches(addr netip.AddrPort) error {
	_, err := targetOf(addr)
	if err == nil {
		err = f.anyDevice()
	}
	if err != nil {
		return fmt.Errorf("rcm: resolve %v: %w", addr, err)
	}
	return nil
}

func (f *fabric) resolve(ctx context.Context, addr netip.AddrPort, space portSpace) (*resolved, error) {
	if ctx.Err() != nil {
		return nil, handshake.ContextError(ctx)
	}
	dst, err := targetOf(addr)
	if err != nil {
		return nil, err
	}
	if err := f.anyDevice(); err != nil {
		return nil, err
	}
	r, err := f.resolveFrom(ctx, f.cfg.Source, dst, space)
	if !errors.Is(err, rcm.ErrOtherDevice) || f.cfg.Source.IsValid() {
		return r, err
	}
	// Another interface of the host may lead there too.
	sources, listErr := f.sources(dst.Addr())
	if listErr != nil {
		return nil, listErr
	}
	for _, src := range sources {
		if r, srcErr := f.resolveFrom(ctx, src, dst, space); srcErr == nil {
			return r, nil
		}
	}
	return nil, err
}

// anyDevice is the quick way out on hosts without RDMA.
func (f *fabric) anyDevice() error {
	names, err := rdmahost.Names()
	switch {
	case err != nil:
		return nil // rdma_cm may know more
	case len(names) == 0 && f.cfg.Device != "":
		return fmt.Errorf("%w: no device %s, this host has no RDMA device", rcm.ErrNoRoute, f.cfg.Device)
	case len(names) == 0:
		return fmt.Errorf("%w: this host has no RDMA device", rcm.ErrNoRoute)
	case f.cfg.Device != "" && !slices.Contains(names, f.cfg.Device):
		return fmt.Errorf("%w: no device %s, there are %v", rcm.ErrNoRoute, f.cfg.Device, names)
	case f.cfg.Device != "" && f.cfg.Port != 0 && !rdmahost.HasPort(f.cfg.Device, f.cfg.Port):
		return fmt.Errorf("%w: device %s has no port %d", rcm.ErrNoRoute, f.cfg.Device, f.cfg.Port)
	}
	return nil
}

// targetOf returns the address that a dial to addr means. To rdma_cm a
// loopback address is a wildcard, and it would take any device for it.
func targetOf(addr netip.AddrPort) (netip.AddrPort, error) {
	ip := addr.Addr().Unmap()
	switch {
	case !ip.IsValid() || addr.Port() == 0:
		return addr, fmt.Errorf("%w: not an address and a port", rcm.ErrNoRoute)
	case ip.IsLoopback() || ip.IsUnspecified():
		return addr, fmt.Errorf("%w: loopback address", rcm.ErrNoRoute)
	case ip.IsMulticast():
		return addr, fmt.Errorf("%w: multicast address", rcm.ErrNoRoute)
	}
	return netip.AddrPortFrom(ip, addr.Port()), nil
}

func (f *fabric) uses(d device) error {
	switch {
	case f.cfg.Device != "" && d.name != f.cfg.Device:
		return fmt.Errorf("%w: it is on %s, not %s", rcm.ErrOtherDevice, d.name, f.cfg.Device)
	case f.cfg.Port != 0 && d.port != f.cfg.Port:
		return fmt.Errorf("%w: it is on port %d of %s, not port %d", rcm.ErrOtherDevice, d.port, d.name, f.cfg.Port)
	case len(f.cfg.Transports) > 0 && !slices.Contains(f.cfg.Transports, d.transport):
		return fmt.Errorf("%w: it is on %s, a device of transport %v", rcm.ErrOtherDevice, d.name, d.transport)
	}
	return nil
}

// sources lists the addresses of the host from which the fabric's one device or
// port may reach ip.
func (f *fabric) sources(ip netip.Addr) ([]netip.Addr, error) {
	if f.cfg.Device == "" && f.cfg.Port == 0 {
		return nil, nil
	}
	addrs, err := rdmahost.Addrs()
	if err != nil {
		return nil, err
	}
	var list []netip.Addr
	for _, a := range addrs {
		if a.Is4() != ip.Is4() || a.IsLinkLocalUnicast() != ip.IsLinkLocalUnicast() {
			continue
		}
		if d, err := deviceAt(a); err == nil && f.uses(d) == nil {
			list = append(list, a)
		}
	}
	return list, nil
}

// deviceAt returns the device that rdma_cm uses for an address of this host.
func deviceAt(ip netip.Addr) (device, error) {
	id, err := newCMID(portSpaceTCP)
	if err != nil {
		return device{}, err
	}
	defer id.destroy()
	if err := id.bind(netip.AddrPortFrom(ip, 0)); err != nil {
		return device{}, err
	}
	a, err := id.query()
	if err != nil {
		return device{}, err
	}
	return deviceOf(a)
}

// resolveFrom resolves dst, from src if that is valid. To a group there is no route:
// there the device is all.
func (f *fabric) resolveFrom(ctx context.Context, src netip.Addr, dst netip.AddrPort, space portSpace) (*resolved, error) {
	id, err := newCMID(space)
	if err != nil {
		return nil, err
	}
	r := &resolved{fabric: f, space: space, source: src, id: id}
	err = r.resolveDevice(ctx, src, dst)
	if err == nil && !dst.Addr().IsMulticast() {
		err = r.resolveRoute(ctx)
	}
	if err != nil {
		id.destroy()
		return nil, err
	}
	return r, nil
}

func (r *resolved) resolveDevice(ctx context.Context, src netip.Addr, dst netip.AddrPort) error {
	f := r.fabric
	if f.cfg.TOS != 0 {
		if err := r.id.setOption(ucmOptionTOS, []byte{f.cfg.TOS}); err != nil {
			return err
		}
	}
	if err := r.id.resolveAddr(src, dst, timeoutOf(ctx)); err != nil {
		return fmt.Errorf("%w: %w", rcm.ErrNoRoute, err)
	}
	if err := expect(ctx, r.id, eventAddrResolved); err != nil {
		return err
	}
	a, err := r.id.query()
	if err != nil {
		return err
	}
	if r.device, err = deviceOf(a); err != nil {
		return err
	}
	if err := f.uses(r.device); err != nil {
		return err
	}
	if err := r.device.checkSpace(r.space); err != nil {
		return err
	}
	if err := r.device.checkPort(); err != nil {
		return err
	}
	r.local, r.remote = a.local, dst
	return nil
}

func (r *resolved) resolveRoute(ctx context.Context) error {
	if err := r.id.resolveRoute(timeoutOf(ctx)); err != nil {
		return fmt.Errorf("%w: %w", rcm.ErrNoRoute, err)
	}
	return expect(ctx, r.id, eventRouteResolved)
}

// Expect waits for one event of Resolve.
func expect(ctx context.Context, id *cmID, want eventKind) error {
	ev, err := id.next(ctx) // ends with an event or ctx
	switch {
	case err != nil:
		return err
	case ev.kind == want:
		return nil
	case ev.kind == eventAddrError || ev.kind == eventRouteError:
		return fmt.Errorf("%w: %w", rcm.ErrNoRoute, resolveError(ev))
	case ev.kind == eventDeviceRemoval:
		return fmt.Errorf("%w: %w", rcm.ErrNoRoute, rcm.ErrDeviceRemoved)
	}
	return fmt.Errorf("%w: event %v, status %d", rcm.ErrNoRoute, ev.kind, ev.status)
}

func resolveError(ev cmEvent) error {
	if ev.status >= 0 {
		return fmt.Errorf("%v %d", ev.kind, ev.status)
	}
	errno := unix.Errno(-ev.status)
	switch errno {
	case unix.ENODEV:
		return fmt.Errorf("no RDMA device on the interface that leads there: %w", errno)
	case unix.ETIMEDOUT:
		return fmt.Errorf("the neighbor does not answer: %w", errno)
	}
	return fmt.Errorf("%v: %w", ev.kind, errno)
}

// timeoutOf returns in milliseconds how long the kernel is to try: no longer
// than it makes sense under ctx, but so that ctx ends first, whose error says
// what has happened.
func timeoutOf(ctx context.Context) uint32 {
	left := resolveTimeout
	if deadline, ok := ctx.Deadline(); ok {
		left = min(left, time.Until(deadline)+time.Second)
	}
	return uint32(max(left/time.Millisecond, 1))
}

// resolved is an id whose address is resolved, and the route unless it is a group's.
type resolved struct {
	fabric *fabric
	space  portSpace
	source netip.Addr // asked for, or invalid
	id     *cmID
	device device
	local  netip.AddrPort
	remote netip.AddrPort
	used   atomic.Bool // Connect, Lookup, Join or Close has taken id
}

func (r *resolved) Device() string             { return r.device.name }
func (r *resolved) Port() uint8                { return r.device.port }
func (r *resolved) LocalAddr() netip.Addr      { return r.local.Addr() }
func (r *resolved) RemoteAddr() netip.AddrPort { return r.remote }

func (r *resolved) Close() error {
	if !r.used.Swap(true) {
		r.id.destroy()
	}
	return nil
}

// route is the way to a listener for connections.
type route struct{ *resolved }
