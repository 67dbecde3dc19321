package soft

import "sync/atomic"

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
