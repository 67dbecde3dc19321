package softcm

import (
	"syscall"

	"github.com/seed-b9b531af/ramjet/rcm"
)

// DefaultDevice is the software device that is used if a Config names none.
const DefaultDevice = "soft0"

// Config says how to connect over a software device; the zero value means device
// "soft0" and processes of the same user.
type Config struct {
	// Device is the software device to make QPs on, DefaultDevice if empty.
	Device string
	// PeerPolicy decides which processes may be dialed, and which may dial; nil
	// means those of the same user. It must not wait. The policy of a
	// ListenConfig narrows it down.
	PeerPolicy func(rcm.Peer) bool
	// Directory is where processes in other network namespaces of this host are met:
	// the path of a directory that all of them see, see samehost.Directory. Empty
	// means that they are not.
	Directory string
	// Allow says who may be met beside processes of our user.
	Allow Rules
}

// New returns the Fabric of a software device: it connects processes of this
// host. On systems other than Linux there is none, and its calls return errors that
// wrap ErrNoRoute.
func New(cfg Config) rcm.Fabric {
	if cfg.Device == "" {
		cfg.Device = DefaultDevice
	}
	return &fabric{device: cfg.Device, allow: cfg.PeerPolicy, meetAt: cfg.Directory, rules: cfg.Allow}
}

type fabric struct {
	device string
	allow  func(rcm.Peer) bool // nil: those of the same user
	meetAt string              // the path of a directory, or empty
	rules  Rules               // who is met beside ours
	asked  bool                // for that directory: it is not that of everybody
	socket *UnixSocket         // beside which it is; nil: at addresses of the network
	given  syscall.Conn        // that socket, if this process did not open it; nil otherwise

	datagrams bool // it finds UD QPs; then there is neither a directory nor a socket
}

// In returns the fabric with another Config.Directory, and other Config.Allow.
func (f *fabric) In(directory string, allow Rules) rcm.Fabric {
	return &fabric{device: f.device, allow: f.allow, meetAt: directory, rules: allow, asked: true}
}

// Name returns "soft".
func (f *fabric) Name() string { return "soft" }
