// Package thread runs what changes a thread for good, for tests: its user, its capabilities,
// its signals.
package thread

import (
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// Run runs f on a thread that ends after it. No other goroutine gets that thread: even one whose
// credentials were put back is another one to the kernel (ib_safe_file_access compares pointers).
// It is not the first thread of the process, which does not end, and which /proc
// shows as the process.
func Run(f func()) {
	var apart sync.WaitGroup
	apart.Go(func() {
		runtime.LockOSThread() // and the thread ends with the goroutine
		if unix.Gettid() != unix.Getpid() {
			f()
			return
		}
		Run(f) // on another one, for this one is taken
		runtime.UnlockOSThread()
	})
	apart.Wait() // ended by f
}
