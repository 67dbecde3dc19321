//go:build !linux

package softcm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"

	"github.com/seed-b9b531af/ramjet/rcm"
)

// Resolve fails: there is no software HCA on this system.
func (f *fabric) Resolve(_ context.Context, addr netip.AddrPort) (rcm.Route, error) {
	return nil, fmt.Errorf("rcm: resolve %v: %w: no software HCA on %s: %w", addr, rcm.ErrNoRoute, runtime.GOOS, errors.ErrUnsupported)
}

// Listen fails: there is no software HCA on this system.
func (f *fabric) Listen(addr netip.AddrPort, _ rcm.ListenConfig) (rcm.Listener, error) {
	return nil, fmt.Errorf("rcm: listen on %v: %w: no software HCA on %s: %w", addr, rcm.ErrNoRoute, runtime.GOOS, errors.ErrUnsupported)
}
