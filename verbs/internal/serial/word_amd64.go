//go:build !race

package serial

import "sync/atomic"

// Word is a counter with one writer at a time, which others read. What the writer did before
// Store is seen by whoever has loaded what it stored.
//
// Package atomic would store by XCHG, which waits until all stores before it have left the
// processor. Stores of amd64 are seen in the order in which they were made (Intel SDM, volume
// 3, 9.2.2), and the compiler keeps the order of stores, calls and atomic operations.
type Word struct{ v uint32 }

// Load returns what was stored last.
func (w *Word) Load() uint32 { return atomic.LoadUint32(&w.v) }

// Store is for the one writer.
func (w *Word) Store(v uint32) { w.v = v }
