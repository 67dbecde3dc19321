// Package handloop has an event loop that tests run by hand: its goroutine is the test's.
package handloop

import (
	"sync/atomic"
	"testing"

	"github.com/seed-b9b531af/ramjet/internal/hang"
)

// Stream is what the loop does with a stream of package mux. (That package's own tests use the
// loop, so it cannot be named here.)
type Stream interface {
	Write(p []byte) (int, error)
	Close(reset bool)
}

// Loop is the event loop.
type Loop[S Stream] struct {
	Poller interface { // set by the test
		Poll() int
		Arm() bool
	}
	Wakes  atomic.Int32   // how often it was woken
	Sinks  []*Sink[S]     // of its streams, in the order in which they came
	Answer bool           // what is readable is written back
	GoOn   func(*Sink[S]) // what a stream does that may write again
}

// Wake is called by package mux to wake the loop.
func (l *Loop[S]) Wake() { l.Wakes.Add(1) }

// Until polls until f says so.
func (l *Loop[S]) Until(t testing.TB, what string, f func() bool) {
	t.Helper()
	hang.Eventually(t, what, func() bool {
		l.Poller.Poll()
		return f()
	})
}

// Sleeps polls until there is nothing more to do.
func (l *Loop[S]) Sleeps(t testing.TB) {
	t.Helper()
	l.Until(t, "the loop sleeps", func() bool { return l.Poller.Arm() })
	l.Wakes.Store(0)
}

// Sink keeps what the loop is told of a stream.
type Sink[S Stream] struct {
	Loop      *Loop[S]
	Stream    S
	Got       []byte
	Writables int     // calls of Writable
	Errs      []error // of Ended
	Then      func()  // comes after what was readable, unless it is nil
}

// The methods are those of mux.Sink.

func (k *Sink[S]) Opened() { k.Loop.Sinks = append(k.Loop.Sinks, k) }

func (k *Sink[S]) Readable(p []byte) {
	k.Got = append(k.Got, p...)
	if k.Loop.Answer {
		k.Stream.Write(p)
	}
	if k.Then != nil {
		k.Then()
	}
}

func (k *Sink[S]) Buffered() (int, int) { return 0, 0 }

func (k *Sink[S]) Writable() {
	k.Writables++
	if k.Loop.GoOn != nil {
		k.Loop.GoOn(k)
	}
}

func (k *Sink[S]) Ended(err error) {
	k.Errs = append(k.Errs, err)
	k.Stream.Close(false)
}
