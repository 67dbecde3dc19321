package soft

import (
	"fmt"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// Faults are what a test can make go wrong on a device. Two ends in one
// process complete everything at once, which hides the mistakes that callers
// make with credits, full queues and late completions; these show them. The
// zero value of each field is off.
type Faults struct {
	// CompletionDelay withholds completions from Poll for this long after the
	// first of them could have been polled. Armed CQs give their event when it is over.
	CompletionDelay time.Duration
	// CompletionBatch withholds completions until this many are there, or
	// CompletionDelay (a millisecond if that is 0) has passed.
	CompletionBatch int
	// SlowConsumer makes Poll sleep this long for each completion that it
	// returns, as an application does that works on each.
	SlowConsumer time.Duration
	// RNREvery makes every n-th attempt to use a receive of the peer find
	// none, so that the request waits for the RNR timer and tries again.
	RNREvery int
	// FailPostAt moves a QP to ERR at its n-th posted send request, counted
	// from 1 on each QP. The request is flushed.
	FailPostAt int
	// DropPeerAt cuts the connection to the peer at the n-th posted send
	// request of a QP, as the death of the peer does; both QPs fail.
	DropPeerAt int
	// FailAllocMR, FailMemfd, FailMmap and FailSocketpair make a call fail, as
	// limits, exhaustion and sandboxes do. AllocMR, CreateQP and the mapping
	// of a peer's memory use memfds and mappings, CreateCompChannel an
	// socketpair.
	FailAllocMR, FailMemfd, FailMmap, FailSocketpair FailCall
}

// FailCall makes one call fail.
type FailCall struct {
	// At is which call from now on fails, counted from 1; 0: none.
	At int
	// Err is the error, a syscall.Errno most of the time.
	Err error
}

// InjectFaults lets things go wrong on an open software HCA, or with nil puts
// an end to it; counts begin anew. It is for tests: while faults are
// injected every post takes the slow path. It panics if ctx is not of this
// provider. Any goroutine may call it.
func InjectFaults(ctx *verbs.Context, f *Faults) {
	d, ok := ctx.Driver().(interface{ injectFaults(*Faults) })
	if !ok {
		panic(fmt.Sprintf("soft: InjectFaults on device %s of another provider", ctx.Name()))
	}
	if f != nil {
		copied := *f
		f = &copied
	}
	d.injectFaults(f)
}
