package rcm

// softDevice is the device that Soft connects over.
const softDevice = "soft0"

// SoftConfig says how to connect over a software device; the zero value means
// what Soft returns.
type SoftConfig struct {
	// Device is the software device to make QPs on, "soft0" if empty.
	Device string
	// PeerPolicy decides which processes may be dialed, and which may dial; nil
	// means those of the same user. It must not wait. The policy of a
	// ListenConfig narrows it down.
	PeerPolicy func(Peer) bool
}

// Soft returns the Fabric of the software HCA, device "soft0": it connects
// processes of the same user on this host. On systems other than Linux there
// is none, and its calls return errors that wrap ErrNoRoute.
func Soft() Fabric { return SoftWith(SoftConfig{}) }

// SoftOn is Soft for another software device.
func SoftOn(device string) Fabric { return SoftWith(SoftConfig{Device: device}) }

// SoftWith is Soft with other than its defaults.
func SoftWith(cfg SoftConfig) Fabric {
	if cfg.Device == "" {
		cfg.Device = softDevice
	}
	return &softFabric{device: cfg.Device, allow: cfg.PeerPolicy}
}

type softFabric struct {
	device string
	allow  func(Peer) bool // nil: those of the same user
}

// Name returns "soft".
func (f *softFabric) Name() string { return "soft" }
