package ring

import (
	"fmt"
	"iter"
)

// Which end may take which step of the model when; model_test.go describes the model.

type step func(w *world, e, peer *end) error

// successors: see state.
func (w *world) successors() iter.Seq2[string, func() (state, error)] {
	return func(yield func(string, func() (state, error)) bool) {
		for i := range w.ends {
			take := w.take(i, yield)
			if !w.application(i, take) || !w.program(i, take) {
				return
			}
		}
	}
}

// taker yields one step of an end, and returns false if no more are wanted.
type taker func(name string, s step) bool

func (w *world) take(i int, yield func(string, func() (state, error)) bool) taker {
	return func(name string, s step) bool {
		return yield(fmt.Sprintf("%d: %s", i, name), func() (state, error) {
			next := w.clone()
			err := s(next, &next.ends[i], &next.ends[1-i])
			return next, err
		})
	}
}

// application offers what the application of end i can do: read or write.
func (w *world) application(i int, take taker) bool {
	e := &w.ends[i]
	if !e.polling {
		return true
	}
	for s := range modelStreams {
		read := func(w *world, e, _ *end) error { return w.read(e, s) }
		if len(e.unread[s]) > 0 && w.p.readers[i][s] != never && !take(fmt.Sprintf("application reads stream %d", s), read) {
			return false
		}
		write := func(_ *world, e, _ *end) error { e.write(s); return nil }
		if e.toWrite[s] > 0 && !take(fmt.Sprintf("application writes stream %d", s), write) {
			return false
		}
	}
	return true
}

// program offers what the program of end i can do next.
func (w *world) program(i int, take taker) bool {
	if e := &w.ends[i]; !e.polling {
		return w.outputs(e, take)
	}
	return w.polls(i, take)
}
