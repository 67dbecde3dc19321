//go:build race

package soft

import (
	"runtime"
	"unsafe"
)

// A publication in this process happens before the poll that sees it.

func raceRelease(in *inbound) {
	if in != nil {
		runtime.RaceReleaseMerge(unsafe.Pointer(in))
	}
}

func raceAcquire(in *inbound) { runtime.RaceAcquire(unsafe.Pointer(in)) }
