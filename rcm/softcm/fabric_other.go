//go:build !linux

package softcm

import (
	"context"
	"errors"
	"fmt"
	"net"
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

// ResolveDatagram fails: there is no software HCA on this system.
func (f *fabric) ResolveDatagram(_ context.Context, addr netip.AddrPort) (rcm.DatagramRoute, error) {
	return nil, fmt.Errorf("rcm: resolve %v for datagrams: %w: no software HCA on %s: %w", addr, rcm.ErrNoRoute, runtime.GOOS, errors.ErrUnsupported)
}

// ListenDatagram fails: there is no software HCA on this system.
func (f *fabric) ListenDatagram(addr netip.AddrPort, _ rcm.ListenConfig) (rcm.DatagramListener, error) {
	return nil, fmt.Errorf("rcm: listen on %v for datagrams: %w: no software HCA on %s: %w", addr, rcm.ErrNoRoute, runtime.GOOS, errors.ErrUnsupported)
}

// ResolveGroup fails: there is no software HCA on this system.
func (f *fabric) ResolveGroup(_ context.Context, group netip.Addr) (rcm.GroupRoute, error) {
	return nil, fmt.Errorf("rcm: resolve group %v: %w: no software HCA on %s: %w", group, rcm.ErrNoRoute, runtime.GOOS, errors.ErrUnsupported)
}

// UnixSocketAt fails: there is no software HCA on this system.
func UnixSocketAt(network, address string) (UnixSocket, error) {
	return UnixSocket{}, fmt.Errorf("rcm: no software HCA on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}

// MayConnect fails: there is no software HCA on this system.
func (s UnixSocket) MayConnect() error { return errors.ErrUnsupported }

// Drop closes a connection.
func Drop(c net.Conn) { c.Close() }
