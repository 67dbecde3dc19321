package rnet

import (
	"context"
	"runtime/trace"
)

// region begins a region of a trace of the runtime, which ends on the same
// goroutine. Regions stand where goroutines sleep or wake and where sessions
// are made, never on the way of a byte. Without a trace, which StartRegion
// asks first, one costs a load and allocates nothing.
func region(name string) *trace.Region { return trace.StartRegion(context.Background(), name) }
