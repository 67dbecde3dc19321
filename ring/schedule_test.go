package ring

import (
	"fmt"
	"iter"
)

// Which end may take which step of the model when; model_test.go describes the model.

type step func(w *world, e, peer *end) error

// successors: see state. Some steps touch nothing that the other end can see,
// or, like writing into the ring before it is announced, do most harm when done
// at once. In what order they come among the steps of the other end makes no
// difference, so an end that can take one is explored alone.
func (w *world) successors() iter.Seq2[string, func() (state, error)] {
	return func(yield func(string, func() (state, error)) bool) {
		for i := range w.ends {
			if w.private(&w.ends[i]) {
				w.program(i, w.take(i, yield))
				return
			}
		}
		for i := range w.ends {
			take := w.take(i, yield)
			if !w.environment(i, take) || !w.program(i, take) {
				return
			}
		}
	}
}

// private reports whether the next step of e's program can be taken at once.
func (w *world) private(e *end) bool {
	switch e.pc {
	case atOutput:
		return !w.p.atomic
	case atPublish, atArm:
		return true
	case atFence, atArmFence:
		return len(e.stores) == 0
	}
	return false
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

// environment offers what happens to end i beside its program: a store reaches
// memory, its application
// reads or writes.
func (w *world) environment(i int, take taker) bool {
	e := &w.ends[i]
	if len(e.stores) > 0 && !take("store reaches memory", (*world).flush) {
		return false
	}
	if e.pc != atPoll && e.pc != atSleep {
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
	e := &w.ends[i]
	switch e.pc {
	case atOutput:
		return w.outputs(e, take)
	case atPoll:
		return w.polls(i, take)
	case atFence, atArmFence:
		if len(e.stores) > 0 {
			return true // ended by the store reaching memory
		}
	case atSleep:
		if e.lost && !take("repeat the credit", (*world).repeatCredit) {
			return false
		}
		if !e.wake {
			return true // ended by the peer's wake-up
		}
	}
	return take(steps[e.pc].name, steps[e.pc].run)
}

var steps = [...]struct {
	name string
	run  step
}{
	atPublish: {"publish", func(w *world, e, _ *end) error {
		e.stores.push(store{storeMessage, e.current})
		e.current = message{}
		e.pc = atFence
		if w.p.noSenderFence {
			e.pc = atLoadArmed
		}
		return nil
	}},
	atFence: {"fence", func(w *world, e, _ *end) error {
		e.pc = atLoadArmed
		if w.p.wakeFirst {
			e.pc = atOutput
		}
		return nil
	}},
	atLoadArmed: {"load armed", func(w *world, e, peer *end) error {
		switch {
		case peer.armed:
			peer.armed = false
			e.pc = atWakePeer
		case w.p.wakeFirst:
			e.pc = atPublish
		default:
			e.pc = atOutput
		}
		return nil
	}},
	atWakePeer: {"wake", func(w *world, e, peer *end) error {
		peer.wake = true
		e.pc = atOutput
		if w.p.wakeFirst {
			e.pc = atPublish
		}
		return nil
	}},
	atArm: {"arm", func(w *world, e, _ *end) error {
		e.stores.push(store{kind: storeArmed})
		switch {
		case !w.p.noReceiverFence:
			e.pc = atArmFence
		case w.p.noPollAgain:
			e.pc = atSleep
		default:
			e.pc = atPollAgain
		}
		return nil
	}},
	atArmFence: {"arm fence", func(w *world, e, _ *end) error {
		e.pc = atPollAgain
		if w.p.noPollAgain {
			e.pc = atSleep
		}
		return nil
	}},
	atPollAgain: {"poll again", func(_ *world, e, _ *end) error {
		e.pc = atSleep
		if len(e.inbox) > 0 {
			e.stores.push(store{kind: storeDisarmed})
			e.pc = atPoll
		}
		return nil
	}},
	atSleep: {"wake up", func(_ *world, e, _ *end) error {
		e.wake = false
		e.pc = atPoll
		return nil
	}},
}

func (w *world) flush(e, peer *end) error {
	switch s := e.stores.pop(); s.kind {
	case storeMessage:
		peer.inbox.push(s.msg)
	case storeArmed:
		e.armed = true
	case storeDisarmed:
		e.armed = false
	}
	return nil
}
