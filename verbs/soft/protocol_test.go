//go:build linux

package soft

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// The protocol by which a producer wakes a consumer, step by step as the code
// takes them (publish and wake of outbound, Arm of cq, Wait, WaitThread and
// signal of channel), explored in every order. The property: whenever nobody
// can take a step any more, the consumer has everything. A sleep that nothing
// ends is a state without steps in which something is missing.
//
// Stores go through a store buffer, as on hardware: a store that is not a
// fence becomes visible at some later step. The controls take a fence or a
// step out of the protocol, and must be found wanting.

// variant is a protocol: the right one, or one with a fault.
type variant struct {
	messages   int
	thread     bool // the consumer sleeps in WaitThread, not in Wait
	wakes      int  // calls of Wake by somebody else
	timeout    bool // a sleep may end by its deadline once
	afterWake  bool // nothing is sent before a wait ended: only Wake can end it
	plainSeq   bool // fault: seq is stored without a fence
	plainArm   bool // fault: arm is stored without a fence
	wakeFirst  bool // fault: the producer looks whether to wake before it publishes
	noRepoll   bool // fault: the consumer does not poll after arming
	noSleepBit bool // fault: the producer does not see that a futex is slept on
	keepsWord  bool // fault: signal wakes the futex without changing the word
}

// world is a state of everything. It is comparable: states are remembered.
type world struct {
	// Shared memory.
	published int
	armed     bool
	futex     bool // the bit armFutex
	socket    bool // a byte is in the wake-up socket

	// Stores that are not visible yet.
	seqBuffered, armBuffered bool

	// The producer: step, and what it has loaded.
	p         int
	sent      int
	sawFutex  bool
	loadedBit bool
	looked    bool // whether to wake, for the message to come

	// The consumer: step, what it took, and the word it sleeps on.
	c          int
	taken      int
	asleep     bool // in the kernel, on the futex
	expArmed   bool
	expFutex   bool
	woken      bool
	timeoutsOK bool

	// The one who calls Wake.
	w     int
	wakes int
	ended bool // a wait has ended
}

// The steps of the producer (outbound.publish, outbound.wake).
const (
	pPublish = iota
	pLoadArm
	pTakeArmed
	pRing
	pDone
)

// The steps of the consumer: poll, arm, poll, sleep, and from the beginning.
const (
	cPoll = iota
	cArm
	cRepoll
	cEnter  // WaitThread sets armFutex if it is armed
	cLook   // and looks at the wake-up socket
	cFutex  // FUTEX_WAIT compares the word and sleeps
	cSleep  // asleep in the futex
	cLeave  // clears armFutex
	cSocket // asleep for the wake-up socket
	cDone
)

// The steps of Wake: the socket, the word, the futex.
const (
	wRing = iota
	wClearBit
	wWakeFutex
)

func (v *variant) start() world {
	return world{wakes: v.wakes, timeoutsOK: v.timeout}
}

// next returns every state that one step leads to.
func (v *variant) next(s world) []world {
	var out []world
	step := func(f func(*world)) {
		n := s
		f(&n)
		out = append(out, n)
	}
	if s.seqBuffered {
		step(func(n *world) { n.published, n.seqBuffered = n.sent, false })
	}
	if s.armBuffered {
		step(func(n *world) { n.armed, n.armBuffered = true, false })
	}
	v.producer(s, step)
	v.consumer(s, step)
	v.waker(s, step)
	return out
}

func (v *variant) producer(s world, step func(func(*world))) {
	switch s.p {
	case pPublish:
		if v.afterWake && !s.ended {
			return
		}
		if s.sent == v.messages {
			step(func(n *world) { n.p = pDone })
			return
		}
		if v.wakeFirst && !s.looked {
			step(func(n *world) { n.looked, n.p = true, pLoadArm })
			return
		}
		step(func(n *world) {
			n.sent++
			n.looked = false
			if v.plainSeq {
				n.seqBuffered = true
			} else {
				n.published = n.sent
			}
			if !v.wakeFirst {
				n.p = pLoadArm
			}
		})
	case pLoadArm:
		step(func(n *world) {
			n.p = pPublish
			if n.armed {
				n.loadedBit, n.p = n.futex, pTakeArmed
			}
		})
	case pTakeArmed:
		step(func(n *world) {
			if n.seqBuffered { // a compare-and-swap drains the store buffer
				n.published, n.seqBuffered = n.sent, false
			}
			if !n.armed || n.futex != n.loadedBit {
				n.p = pLoadArm // the word has changed: look again
				return
			}
			n.sawFutex = n.futex && !v.noSleepBit
			n.armed, n.futex = false, false
			n.p = pRing
		})
	case pRing:
		step(func(n *world) {
			if n.sawFutex {
				n.wakeFutex()
			} else {
				n.socket = true
			}
			n.p = pPublish
		})
	}
}

func (n *world) wakeFutex() {
	if n.asleep {
		n.woken = true
	}
}

func (v *variant) consumer(s world, step func(func(*world))) {
	take := func(n *world, nothing int) {
		switch {
		case n.taken < n.published:
			n.taken = n.published
			n.c = cPoll
		case n.taken == v.messages:
			n.c = cDone
		default:
			n.c = nothing
		}
	}
	sleep := cSocket
	if v.thread {
		sleep = cEnter
	}
	switch s.c {
	case cPoll:
		step(func(n *world) { take(n, cArm) })
	case cArm:
		step(func(n *world) {
			if v.plainArm {
				n.armBuffered = true
			} else {
				n.armed = true
			}
			n.c = cRepoll
			if v.noRepoll {
				n.c = sleep
			}
		})
	case cRepoll:
		step(func(n *world) { take(n, sleep) })
	case cSocket:
		if s.socket {
			step(func(n *world) { n.socket, n.c, n.ended = false, cPoll, true })
		}
		v.maybeTimeout(s, step, cPoll)
	case cEnter:
		step(func(n *world) {
			n.c = cSocket
			if n.armed { // by compare-and-swap
				n.futex = true
				n.expArmed, n.expFutex = true, true
				n.c = cLook
			}
		})
	case cLook:
		step(func(n *world) {
			n.c = cFutex
			if n.socket {
				n.socket, n.c = false, cLeave
			}
		})
	case cFutex:
		step(func(n *world) {
			n.c = cLeave
			if n.armed == n.expArmed && n.futex == n.expFutex {
				n.asleep, n.woken, n.c = true, false, cSleep
			}
		})
	case cSleep:
		if s.woken {
			step(func(n *world) { n.asleep, n.woken, n.c = false, false, cLeave })
		}
		v.maybeTimeout(s, step, cLeave)
	case cLeave:
		step(func(n *world) { n.futex, n.c, n.ended = false, cPoll, true })
	}
}

func (v *variant) maybeTimeout(s world, step func(func(*world)), to int) {
	if s.timeoutsOK {
		step(func(n *world) { n.timeoutsOK, n.asleep, n.woken, n.c = false, false, false, to })
	}
}

func (v *variant) waker(s world, step func(func(*world))) {
	switch s.w {
	case wRing:
		if s.wakes > 0 {
			step(func(n *world) { n.socket, n.w = true, wClearBit })
		}
	case wClearBit:
		step(func(n *world) {
			n.w = wWakeFutex
			if !v.keepsWord {
				n.futex = false
			}
		})
	case wWakeFutex:
		step(func(n *world) {
			n.wakeFutex()
			n.wakes--
			n.w = wRing
		})
	}
}

// explore visits every state that can be reached. It returns how many there
// are, and one in which nobody can go on although something is missing.
func (v *variant) explore() (int, *world) {
	seen := map[world]bool{v.start(): true}
	todo := []world{v.start()}
	for len(todo) > 0 {
		s := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		next := v.next(s)
		if len(next) == 0 && s.taken != v.messages {
			return len(seen), &s
		}
		for _, n := range next {
			if !seen[n] {
				seen[n] = true
				todo = append(todo, n)
			}
		}
	}
	return len(seen), nil
}

func TestNoOrderOfStepsLosesAWakeUp(t *testing.T) {
	for _, thread := range []bool{false, true} {
		for wakes := range 3 {
			for _, timeout := range []bool{false, true} {
				name := fmt.Sprintf("thread=%v/wakes=%d/timeout=%v", thread, wakes, timeout)
				t.Run(name, func(t *testing.T) {
					v := variant{messages: 4, thread: thread, wakes: wakes, timeout: timeout}
					states, stuck := v.explore()
					require.Nil(t, stuck, "%+v", stuck)
					require.Greater(t, states, 40)
					if wakes > 0 {
						v.afterWake = true
						_, stuck = v.explore()
						require.Nil(t, stuck, "%+v", stuck)
					}
				})
			}
		}
	}
}

// A checker that finds nothing has to show that it could.
func TestTheCheckerFindsEachFault(t *testing.T) {
	for name, v := range map[string]variant{
		"seq without a fence":                  {plainSeq: true},
		"arm without a fence":                  {plainArm: true},
		"no poll after arming":                 {noRepoll: true},
		"looking whether to wake too early":    {wakeFirst: true},
		"the wake-up of a futex unseen":        {thread: true, noSleepBit: true},
		"a wake that leaves the word as it is": {thread: true, wakes: 1, afterWake: true, keepsWord: true},
	} {
		t.Run(name, func(t *testing.T) {
			v.messages = 3
			_, stuck := v.explore()
			require.NotNil(t, stuck)
		})
	}
}
