//go:build !amd64 || race

package release

import "sync/atomic"

// Store stores v. Elsewhere than on amd64 an atomic store is the cheapest there is, and
// under the race detector the only one that it knows.
func Store(w *atomic.Uint64, v uint64) { w.Store(v) }

// Store32 stores v.
func Store32(w *atomic.Uint32, v uint32) { w.Store(v) }
