//go:build !race

// Package race tells the race detector, where it is built in, of what it does not
// see: publications through shared memory.
package race

import "unsafe"

// Enabled reports whether the race detector is built in.
const Enabled = false

// Acquire orders what follows behind the [Release] calls on p.
func Acquire(unsafe.Pointer) {}

// Release orders what came before it, and before other calls of Release on p,
// ahead of the next [Acquire].
func Release(unsafe.Pointer) {}
