package kernelcm

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/verbs"
	"golang.org/x/sys/unix"
)

// listenOn makes id listen on one address. The error wraps ErrNoRoute if no
// device that may be used has it, EADDRINUSE if somebody else listens there.
func (l *listener) listenOn(id *cmID, at netip.Addr) error {
	to := netip.AddrPortFrom(at, l.addr.Port())
	if err := id.bind(to); err != nil {
		return bindError(to, err)
	}
	a, err := id.query()
	if err != nil {
		return err
	}
	device, err := deviceOf(a)
	if err != nil {
		return err
	}
	if err := l.fabric.uses(device); err != nil {
		return err
	}
	if err := device.checkSpace(l.space); err != nil {
		return err
	}
	id.handle(func(ev cmEvent) { l.event(id, ev) })
	err = id.listen(kernelBacklog)
	switch {
	case err == nil:
		return nil
	case device.transport == verbs.TransportIWARP && errors.Is(err, unix.EADDRINUSE):
		return fmt.Errorf("%s is an iWARP device, and TCP port %d of %v is taken: %w", device.name, l.addr.Port(), at, err)
	case errors.Is(err, unix.ENODEV):
		return fmt.Errorf("%w: %w", rcm.ErrNoRoute, err) // it has just gone
	}
	return fmt.Errorf("%v on %s: %w", at, device.name, err)
}

// bindError says what a BIND that failed means. The kernel returns
// EADDRNOTAVAIL where the port is held by a wildcard too.
func bindError(to netip.AddrPort, err error) error {
	at := to.Addr()
	if errors.Is(err, unix.EADDRNOTAVAIL) {
		if _, devErr := deviceAt(at); devErr == nil {
			return fmt.Errorf("%v: %w (the whole port is held in rdma_cm): %w", at, unix.EADDRINUSE, err)
		}
	}
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("%w: no RDMA device has %v: %w", rcm.ErrNoRoute, at, err)
	}
	if errors.Is(err, unix.EACCES) && to.Port() < 1024 {
		return fmt.Errorf("%v: %w (ports below 1024 need CAP_NET_BIND_SERVICE)", at, err)
	}
	return fmt.Errorf("%v: %w", at, err)
}
