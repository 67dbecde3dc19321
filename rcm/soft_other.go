//go:build !linux

package rcm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
)

// Resolve fails: there is no software HCA on this system.
func (f *softFabric) Resolve(_ context.Context, addr netip.AddrPort) (Route, error) {
	return nil, fmt.Errorf("rcm: resolve %v: %w: no software HCA on %s: %w", addr, ErrNoRoute, runtime.GOOS, errors.ErrUnsupported)
}

// Listen fails: there is no software HCA on this system.
func (f *softFabric) Listen(addr netip.AddrPort, _ ListenConfig) (Listener, error) {
	return nil, fmt.Errorf("rcm: listen on %v: %w: no software HCA on %s: %w", addr, ErrNoRoute, runtime.GOOS, errors.ErrUnsupported)
}
