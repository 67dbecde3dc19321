package rcm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
)

// AwaitFree waits until nobody listens at addr any more, as far as that can be
// told: Listen may fail again, and is tried again by whom it matters to. Who
// listens there holds a connection of ours meanwhile, and ends it after its
// handshake timeout. The error is what ended ctx, or what keeps it from waiting:
// that another user listens, say.
func (f *softFabric) AwaitFree(ctx context.Context, addr netip.AddrPort, cfg ListenConfig) error {
	addr = netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
	sock, err := dialSoft(listenNames(addr, cfg.V6Only), f.allow)
	if errors.Is(err, ErrNoListener) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("rcm: wait for %v: %w", addr, err)
	}
	defer sock.Close()
	err = sock.interruptible(ctx, func() error {
		_, err := sock.receive() // ended by the listener's end, its timeout, or ctx
		return err
	})
	if ctx.Err() != nil {
		return err
	}
	return nil
}
