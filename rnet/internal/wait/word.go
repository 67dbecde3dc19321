package wait

import "sync/atomic"

// word is the state of a poll lock. It says who takes in the next arrival, and one
// atomic step hands that duty on:
//
//	owned          the owner: it polls, or sleeps on the armed CQ
//	armed          the engine: the CQ is armed and the engine is at the
//	               completion channel, or called to it
//	neither        the sweep, within two periods (swept is set)
//
// A goroutine that needs something from the CQ takes the lock or becomes known to its
// owner (enter, enterOrNote), in one step. The lock is given up (leave) only if the word
// says that nobody needs the owner any more. The steps are functions of the word, so that
// the model test explores the code that runs.
type word uint64

const (
	owned word = 1 << iota
	armed
	noted // a goroutine that may have consumed an event found the lock owned: the owner arms and polls before it leaves
	swept // on the list of the sweep
	fresh // the lock was left since the sweep looked
	asked // a registered waiter is to be the next owner: a shared poller and an engine leave the lock

	oneWaiter word = 1 << 8 // from here on: how many are parked, or about to be
)

func (s word) has(bits word) bool { return s&bits != 0 }

func (s word) waiters() int { return int(s / oneWaiter) }

// entered takes the lock if nobody has it; otherwise it registers a waiter.
func (s word) entered() (next word, owns bool) {
	if s.has(owned) {
		return s + oneWaiter, false
	}
	return s&^armed | owned, true
}

// enterOrNote takes the lock if nobody has it; otherwise it leaves a note.
func (s word) enterOrNote() (next word, owns bool) {
	if s.has(owned) {
		return s | noted, false
	}
	return s&^armed | owned, true
}

// takenOver makes a registered waiter the owner, if nobody is.
func (s word) takenOver() (next word, owns bool) {
	if s.has(owned) {
		return s, false
	}
	return (s-oneWaiter)&^(armed|asked) | owned, true
}

// departure is what an owner has to do before it may leave.
type departure uint8

const (
	departFree  departure = iota // nobody needs anything: the sweep looks after the CQ
	departArmed                  // the CQ must be armed, and polled once more
)

// departing says how the owner may leave.
func (s word) departing() departure {
	if s.has(noted) || s.waiters() > 0 {
		return departArmed
	}
	return departFree
}

// left is the word after the owner has left. The armed CQ was polled and brought
// nothing if how is departArmed; a note that came since forbids it.
func (s word) left(how departure) (next word, ok bool) {
	switch {
	case s.has(noted):
		return s, false
	case how == departArmed:
		return s&^owned | armed, true
	case s.waiters() > 0:
		return s, false
	}
	return s&^owned | swept | fresh, true
}

// visit is what the sweep has to do.
type visit uint8

const (
	visitLater visit = iota // the lock is in use
	visitDrop               // somebody else looks after it
	visitArm                // the sweep has taken the lock: arm
)

// visited is the step of the sweep.
func (s word) visited() (next word, do visit) {
	switch {
	case s.has(fresh):
		return s &^ fresh, visitLater
	case s.has(owned | armed):
		return s &^ swept, visitDrop
	}
	return s&^swept | owned | noted, visitArm
}

// cell holds a word.
type cell struct{ atomic.Uint64 }

func (c *cell) load() word { return word(c.Load()) }

func (c *cell) swap(old, next word) bool { return c.CompareAndSwap(uint64(old), uint64(next)) }

// register and withdraw count a waiter other than the owner.
func (c *cell) register() { c.Add(uint64(oneWaiter)) }
func (c *cell) withdraw() { c.Add(^uint64(oneWaiter - 1)) }

// ask makes a shared poller leave, for takenOver. unask takes that back.
func (c *cell) ask()   { c.Or(uint64(asked)) }
func (c *cell) unask() { c.And(^uint64(asked)) }

// note makes the owner arm and poll before it leaves.
func (c *cell) note() { c.Or(uint64(noted)) }
