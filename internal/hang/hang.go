// Package hang ends tests that hang, with the stacks of all goroutines.
package hang

import (
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// Time is after which something that should be prompt counts as hung. It
// is no measure of speed: the machine may be busy.
const Time = 20 * time.Second

// Start runs f and returns a function that waits for its end, and fails t if
// it hangs.
func Start(t testing.TB, f func()) (await func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	return func() {
		t.Helper()
		timer := time.NewTimer(Time)
		defer timer.Stop()
		select { // ended by f, or the clock
		case <-done:
		case <-timer.C:
			t.Fatalf("hung\n%s", stacks())
		}
	}
}

// Eventually waits until ok is true.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(Time); !ok(); Pause() {
		if time.Now().After(end) {
			t.Fatalf("never: %s\n%s", what, stacks())
		}
	}
}

// Receive waits for what comes from a channel.
func Receive[T any](t testing.TB, ch <-chan T, what string) (v T) {
	t.Helper()
	timer := time.NewTimer(Time)
	defer timer.Stop()
	select { // ended by what comes, or the clock
	case v = <-ch:
	case <-timer.C:
		t.Fatalf("not in time: %s\n%s", what, stacks())
	}
	return v
}

// Parked waits until a goroutine waits on the netpoller in a function, named as in stacks.
func Parked(t testing.TB, function string) {
	t.Helper()
	Eventually(t, "a goroutine parked in "+function, func() bool {
		return slices.ContainsFunc(strings.Split(string(stacks()), "\n\n"), func(s string) bool {
			return strings.Contains(s, "[IO wait") && strings.Contains(s, function+"(")
		})
	})
}

// Pause is what a test does between two looks at something.
func Pause() { time.Sleep(time.Millisecond) }

func stacks() []byte {
	buf := make([]byte, 1<<20)
	return buf[:runtime.Stack(buf, true)]
}
