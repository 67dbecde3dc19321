package soft

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// The names of the provider and its devices.
const (
	// ProviderName is what [verbs.DeviceInfo] reports as the provider.
	ProviderName = "soft"
	// DeviceName is the software HCA. It is listed on Linux only.
	DeviceName = "soft0"
	// TestDeviceName is the same device with the limits of ordinary hardware,
	// listed after [EnableTestDevice].
	TestDeviceName = "soft-noinline"
	// TestNoImmName is TestDeviceName without immediates, atomics and SRQs,
	// as iWARP hardware is.
	TestNoImmName = "soft-noimm"
)

// Peer is a process that wants to pair one of its QPs with one of ours, as
// the kernel reports it (SO_PEERCRED). The ids are those of the peer when it
// connected or listened, seen from our namespaces.
type Peer struct {
	UID, GID uint32
	PID      int
}

var peerPolicy atomic.Pointer[func(Peer) bool]

// SetPeerPolicy decides which processes may pair with the QPs of this one. It
// is asked in both directions, from any goroutine, and must not wait; nil
// restores the default, which admits processes of our own effective user
// only. Pairs that exist stay.
//
// A peer that is admitted shares memory with us: it can write nonsense into
// the regions registered for remote access and into the queues of its own
// pair, which ends that pair, and it can wake us for nothing.
func SetPeerPolicy(admit func(Peer) bool) {
	if admit == nil {
		peerPolicy.Store(nil)
		return
	}
	peerPolicy.Store(&admit)
}

var testDevice atomic.Bool

// EnableTestDevice lists two more devices, "soft-noinline" and "soft-noimm",
// which take 64 bytes of inline data and do not have CapInlineIsTransfer, so
// that callers can test the paths that they take on hardware. The latter lacks
// what iWARP lacks.
func EnableTestDevice() { testDevice.Store(true) }

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
