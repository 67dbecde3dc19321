package leak

import (
	"strings"
	"sync"
	"testing"
	"time"
)

// What code of the module begins by the standard library is its own too.
func TestGoroutinesAreTheirsWhoseFunctionsRun(t *testing.T) {
	for name, start := range map[string]func(f func()){
		"go":                   func(f func()) { go f() },
		"WaitGroup.Go":         func(f func()) { new(sync.WaitGroup).Go(f) },
		"WaitGroup.Go, method": func(f func()) { new(sync.WaitGroup).Go(runner(f).run) },
		"AfterFunc":            func(f func()) { time.AfterFunc(0, f) },
	} {
		t.Run(name, func(t *testing.T) {
			count := func() (n int) {
				for _, stack := range Goroutines() {
					n += strings.Count(stack, "waitHere")
				}
				return n
			}
			begun, end := make(chan struct{}), make(chan struct{})
			start(func() { waitHere(begun, end) })
			<-begun
			if n := count(); n != 1 {
				t.Errorf("%d goroutines are seen, there is 1", n)
			}
			if list := ProductionGoroutines(); len(list) != 0 {
				t.Errorf("tests have begun it, not %q", list)
			}
			close(end)
			for count() != 0 { // ends with the goroutine
				time.Sleep(time.Millisecond)
			}
		})
	}
}

type runner func()

func (r runner) run() { r() }

func waitHere(begun chan<- struct{}, end <-chan struct{}) {
	close(begun)
	<-end
}
