//go:build race

package race

import (
	"runtime"
	"unsafe"
)

// Enabled reports whether the race detector is built in.
const Enabled = true

// Acquire orders what follows behind the [Release] calls on p.
func Acquire(p unsafe.Pointer) { runtime.RaceAcquire(p) }

// Release orders what came before it, and before other calls of Release on p,
// ahead of the next [Acquire].
func Release(p unsafe.Pointer) { runtime.RaceReleaseMerge(p) }
