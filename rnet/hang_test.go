package rnet

import (
	"runtime"
	"testing"
	"time"
)

// hangTime is after which something that should be prompt counts as hung. It
// is no measure of speed: the machine may be busy.
const hangTime = 20 * time.Second

// start runs f and returns a function that waits for its end, and fails t with
// the stacks of all goroutines if it hangs.
func start(t testing.TB, f func()) (await func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	return func() {
		t.Helper()
		timer := time.NewTimer(hangTime)
		defer timer.Stop()
		select {
		case <-done:
		case <-timer.C:
			buf := make([]byte, 1<<20)
			t.Fatalf("hung\n%s", buf[:runtime.Stack(buf, true)])
		}
	}
}

// pause is how long a test waits between two looks at something.
func pause() { time.Sleep(time.Millisecond) }

// eventually waits until ok is true.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(hangTime); !ok(); pause() {
		if time.Now().After(end) {
			buf := make([]byte, 1<<20)
			t.Fatalf("never: %s\n%s", what, buf[:runtime.Stack(buf, true)])
		}
	}
}
