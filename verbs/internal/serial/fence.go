package serial

import (
	"sync"
	"sync/atomic"

	"github.com/seed-b9b531af/ramjet/internal/race"
)

// The states of the fence.
const (
	fenceUnknown uint32 = iota
	fenceReady
	fenceRefused // the kernel has none
)

var fencing struct {
	once  sync.Once
	state atomic.Uint32
}

// prepareFence finds out whether there is a fence, once. It does not wait.
func prepareFence() {
	fencing.once.Do(func() {
		go func() { // ends by itself
			state := fenceRefused
			if registerFence() {
				state = fenceReady
			}
			fencing.state.Store(state)
		}()
	})
}

// fenceState is what is known. Under the race detector nobody needs the fence.
func fenceState() uint32 {
	if race.Enabled {
		return fenceReady
	}
	return fencing.state.Load()
}
