package softcm

import "github.com/seed-b9b531af/ramjet/rcm"

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

// Rules say who may be at the other end of a connection: whoever one of them lets in. The
// peer's rules must let us in, too. They hold in a directory, and but for the key also within
// a network namespace.
type Rules struct {
	// Users and Groups are numbers of our user namespace: the effective user, and the
	// effective or one of the supplementary groups.
	Users, Groups []uint32
	// Cgroups are ids of control groups (version 2), see samehost.Conn.Cgroup. Only the group that
	// the process is in counts, not those that this one is in.
	Cgroups []uint64
	// Key is known to those only who may be met. It has MinKey bytes or more, and is
	// as good as random.
	Key []byte
}

// MinKey is how long a key is at least.
const MinKey = 16

func (r *Rules) none() bool { return len(r.Users) == 0 && !r.look() }

// look reports whether somebody may be let in whose user is not known before.
func (r *Rules) look() bool { return len(r.Groups) > 0 || r.anyUser() }

// anyUser reports whether somebody may be let in whose user does not matter.
func (r *Rules) anyUser() bool { return len(r.Cgroups) > 0 || len(r.Key) > 0 }

// byKernel reports whether somebody may be let in by the kernel's word.
func (r *Rules) byKernel() bool { return len(r.Users) > 0 || len(r.Groups) > 0 || len(r.Cgroups) > 0 }

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

	datagrams bool // it finds UD QPs; then there is neither a directory nor a socket
}

// In returns the fabric with another Config.Directory, and other Config.Allow.
func (f *fabric) In(directory string, allow Rules) rcm.Fabric {
	return &fabric{device: f.device, allow: f.allow, meetAt: directory, rules: allow, asked: true}
}

// Name returns "soft".
func (f *fabric) Name() string { return "soft" }
