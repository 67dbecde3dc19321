package fallback

import "sync/atomic"

// Gate limits how many connections are set up at once. A dial that finds it
// full takes TCP instead of waiting: a storm of set-ups must not make each of
// them slow.
type Gate struct {
	limit int64
	in    atomic.Int64
}

// NewGate returns a gate that lets limit through at once; with limit 0 or less
// it is always full.
func NewGate(limit int) *Gate { return &Gate{limit: int64(limit)} }

// TryEnter enters unless the gate is full. Each true must be followed by one
// Leave. It never waits.
func (g *Gate) TryEnter() bool {
	for {
		n := g.in.Load()
		if n >= g.limit {
			return false
		}
		if g.in.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Leave undoes one TryEnter. One too many is a bug of the caller and panics.
func (g *Gate) Leave() {
	if g.in.Add(-1) < 0 {
		panic("fallback: Leave without TryEnter")
	}
}

// Inside returns how many are inside now.
func (g *Gate) Inside() int { return int(g.in.Load()) }
