package handshake

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/verbs"
)

// What a ListenConfig means that does not say.
const (
	defaultBacklog          = 128
	defaultHandshakeTimeout = 5 * time.Second
)

// CompleteListen checks the arguments of Listen and returns them with the defaults
// filled in.
func CompleteListen(addr netip.AddrPort, cfg rcm.ListenConfig) (netip.AddrPort, rcm.ListenConfig, error) {
	addr = netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
	switch {
	case !addr.Addr().IsValid() || addr.Port() == 0:
		return addr, cfg, fmt.Errorf("%w: needs an address and a port", verbs.ErrInvalid)
	case cfg.Backlog < 0 || cfg.HandshakeTimeout < 0:
		return addr, cfg, fmt.Errorf("%w: backlog %d, handshake timeout %v", verbs.ErrInvalid, cfg.Backlog, cfg.HandshakeTimeout)
	}
	cfg.Backlog = cmp.Or(cfg.Backlog, defaultBacklog)
	cfg.HandshakeTimeout = cmp.Or(cfg.HandshakeTimeout, defaultHandshakeTimeout)
	if cfg.Arrived == nil {
		cfg.Arrived = func() {}
	}
	return addr, cfg, nil
}

// Serves reports whether a listener on an address takes requests for ip, an address of
// this host.
func Serves(on netip.Addr, v6Only bool, ip netip.Addr) bool {
	switch on {
	case netip.IPv6Unspecified():
		return ip.Is6() || !v6Only
	case netip.IPv4Unspecified():
		return ip.Is4()
	}
	return ip == on
}

// A Backlog holds the complete requests of a listener until Accept takes them.
type Backlog[R any] struct {
	addr    netip.AddrPort
	arrived func()        // ListenConfig.Arrived
	waiting chan R        // never blocks its senders, who hold mu
	ended   chan struct{} // closed by End
	once    sync.Once     // closes ended
	err     error         // set before ended is closed

	mu                  sync.Mutex // held while a request is added
	requests, overflows atomic.Uint64
}

// NewBacklog returns the backlog of a listener on addr, whose configuration is complete.
func NewBacklog[R any](addr netip.AddrPort, cfg rcm.ListenConfig) *Backlog[R] {
	return &Backlog[R]{
		addr:    addr,
		arrived: cfg.Arrived,
		waiting: make(chan R, cfg.Backlog),
		ended:   make(chan struct{}),
	}
}

// Add adds a request and counts it, or reports that there is no room.
func (b *Backlog[R]) Add(r R) bool {
	b.mu.Lock()
	full := len(b.waiting) == cap(b.waiting)
	if !full {
		b.requests.Add(1) // whoever takes it finds it counted
		b.waiting <- r
	}
	b.mu.Unlock()
	if full {
		b.Overflow()
		return false
	}
	b.arrived()
	return true
}

// Overflow counts a peer for whom there is no room.
func (b *Backlog[R]) Overflow() { b.overflows.Add(1) }

// Stats returns how many requests were added, and for how many peers there was no room.
func (b *Backlog[R]) Stats() rcm.ListenStats {
	return rcm.ListenStats{Requests: b.requests.Load(), Overflows: b.overflows.Load()}
}

// Take is Accept: it waits for a request, for End or for the end of ctx. After End it
// gives no request, however many wait.
func (b *Backlog[R]) Take(ctx context.Context) (r R, err error) {
	if b.HasEnded() {
		return r, b.wrap(b.err)
	}
	select {
	case r = <-b.waiting: // it comes before the end of ctx
		return r, nil
	default:
	}
	// Ends with a request, End or ctx.
	select {
	case r = <-b.waiting:
		return r, nil
	case <-b.ended:
		return r, b.wrap(b.err)
	case <-ctx.Done():
		return r, b.wrap(ContextError(ctx))
	}
}

func (b *Backlog[R]) wrap(err error) error { return fmt.Errorf("rcm: accept on %v: %w", b.addr, err) }

// End makes Take fail with err from now on. Calls after the first do nothing.
func (b *Backlog[R]) End(err error) {
	b.once.Do(func() {
		b.err = err
		close(b.ended)
		b.arrived()
	})
}

// HasEnded reports whether End was called.
func (b *Backlog[R]) HasEnded() bool {
	select {
	case <-b.ended:
		return true
	default:
		return false
	}
}

// Drain gives refuse the requests that nobody has taken. After End, and once
// nobody adds any more, none is left.
func (b *Backlog[R]) Drain(refuse func(R)) {
	for {
		select {
		case r := <-b.waiting:
			refuse(r)
		default:
			return
		}
	}
}
