// Package wait decides who polls a completion queue, who sleeps, and what wakes
// whom. It knows nothing of sessions and streams: a [Lock] has a [Source], which
// it polls and arms, and a [Channel], on which it sleeps.
//
// A goroutine that needs something waits on a [Waiter] of its own:
//
//	w.Begin()
//	if !there() {
//		lock.Wait(&w) // ended by lock.Wake(&w)
//	}
//
// In Wait it may become the owner of the lock: then it polls, for everybody, and
// the Poll of the Source calls Wake for those for whom something came. The engine,
// a goroutine in [Lock.Run], polls if something comes while nobody has the lock.
// An event loop owns the lock of its sources for good.
//
// Where many more locks are in use than there are processors, owners hand them over to a shared
// poller, a goroutine that owns many locks and polls one after the other. Who has handed
// its lock over is parked like any waiter, and is woken by the poll that brings what it waits for.
// The poller leaves a lock for which nothing has come for a while, or that somebody asks for, and all of
// them when it finds nothing. It leaves them armed. What Poll calls must not wait for
// another lock, nor call code of the program.
//
// # Lost wake-ups
//
// There are none, for three reasons.
//
//   - A goroutine that needs something takes the lock, or is known to its owner (it is
//     counted, or leaves a note), in one atomic step: see word. To hand a lock over changes
//     nothing in the word but that count.
//   - The lock is given up in one place, [Lock.leave], and in one step, which is not
//     possible while somebody is counted or a note is left, unless the CQ has been
//     armed, and polled after that, and the engine is there for its event.
//   - A CQ that is left unarmed is put on the list of the sweep by the same step.
//
// The model test tries every order of these steps.
//
// # What a wait costs others
//
// Polling is paid from an allowance (policy), unless it costs less than a wake-up, or messages
// come sooner for it (pace). It gives way to other goroutines each microsecond, to other
// threads after 50, and where as many poll as there are processors, to those for whom
// something has come to a socket (netpoller). An owner never polls for a peer in our
// process, nor for one on our CPU, which it leaves now and then (Placement). Where others compute on
// all CPUs it may be better to share one with the peer: see colocation.
//
// Sleeping on a thread keeps one of Go's processors. So at most GOMAXPROCS-1 owners of
// the process do it, each after the other runnable goroutines have run (runOthers). All
// others sleep in Go's network poller. What a peer says of itself affects speed only.
package wait
