package fallback

import (
	"context"
	"slices"
	"sync"
)

// Gate limits how many connections are set up at once. Goroutines that find it full wait,
// and enter in the order in which they came: a storm of set-ups must not make each
// of them slow, and none of them has to go without.
type Gate struct {
	limit int

	mu    sync.Mutex
	in    int             // guarded by mu
	queue []chan struct{} // who waits, the first first; guarded by mu
}

// NewGate returns a gate that lets limit through at once, 1 at the least.
func NewGate(limit int) *Gate { return &Gate{limit: max(1, limit)} }

// Enter waits until there is room, or until ctx ends: then it returns the
// error of ctx. Each nil must be followed by one Leave.
func (g *Gate) Enter(ctx context.Context) error {
	g.mu.Lock()
	if g.in < g.limit {
		g.in++
		g.mu.Unlock()
		return nil
	}
	admitted := make(chan struct{})
	g.queue = append(g.queue, admitted)
	g.mu.Unlock()
	select {
	case <-admitted: // ended by Leave
		return nil
	case <-ctx.Done():
	}
	g.mu.Lock()
	i := slices.Index(g.queue, admitted)
	if i >= 0 {
		g.queue = slices.Delete(g.queue, i, i+1)
	}
	g.mu.Unlock()
	if i < 0 { // a Leave was quicker
		g.Leave()
	}
	return ctx.Err()
}

// Leave undoes one Enter. One too many is a bug of the caller and panics.
func (g *Gate) Leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.in == 0:
		panic("fallback: Leave without Enter")
	case len(g.queue) > 0: // who leaves makes room for the first
		close(g.queue[0])
		g.queue = slices.Delete(g.queue, 0, 1)
	default:
		g.in--
	}
}

// Inside returns how many are inside now.
func (g *Gate) Inside() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.in
}
