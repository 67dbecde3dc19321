//go:build !amd64 || race

package serial

import "sync/atomic"

// Word is a counter with one writer at a time, which others read. What the writer did before
// Store is seen by whoever has loaded what it stored.
type Word struct{ v atomic.Uint32 }

// Load returns what was stored last.
func (w *Word) Load() uint32 { return w.v.Load() }

// Store is for the one writer.
func (w *Word) Store(v uint32) { w.v.Store(v) }
