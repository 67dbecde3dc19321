package softcm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/seed-b9b531af/ramjet/rcm"
)

// errDatagrams is that UD QPs of the software HCA do not meet by addresses: they find each
// other by GID and QP number, which programs exchange.
var errDatagrams = fmt.Errorf("%w: the software HCA has no lookup of UD QPs: %w", rcm.ErrNoRoute, errors.ErrUnsupported)

// ResolveDatagram fails, with an error that wraps errors.ErrUnsupported.
func (f *fabric) ResolveDatagram(_ context.Context, addr netip.AddrPort) (rcm.DatagramRoute, error) {
	return nil, fmt.Errorf("rcm: resolve %v for datagrams: %w", addr, errDatagrams)
}

// ListenDatagram fails, with an error that wraps errors.ErrUnsupported.
func (f *fabric) ListenDatagram(addr netip.AddrPort, _ rcm.ListenConfig) (rcm.DatagramListener, error) {
	return nil, fmt.Errorf("rcm: listen on %v for datagrams: %w", addr, errDatagrams)
}

// ResolveGroup fails, with an error that wraps errors.ErrUnsupported.
func (f *fabric) ResolveGroup(_ context.Context, group netip.Addr) (rcm.GroupRoute, error) {
	return nil, fmt.Errorf("rcm: resolve group %v: %w", group, errDatagrams)
}
