//go:build !linux

package rcm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
)

// Resolve fails: there are no RDMA devices on this system.
func (f *kernelFabric) Resolve(_ context.Context, addr netip.AddrPort) (Route, error) {
	return nil, fmt.Errorf("rcm: resolve %v: %w: no RDMA devices on %s: %w", addr, ErrNoRoute, runtime.GOOS, errors.ErrUnsupported)
}

// Listen fails: there are no RDMA devices on this system.
func (f *kernelFabric) Listen(addr netip.AddrPort, _ ListenConfig) (Listener, error) {
	return nil, fmt.Errorf("rcm: listen on %v: %w: no RDMA devices on %s: %w", addr, ErrNoRoute, runtime.GOOS, errors.ErrUnsupported)
}
