package softcm

// Rules say who may be at the other end of a connection: whoever one of them lets in. The
// peer's rules must let us in, too. They hold in a directory, and but for the key also within
// a network namespace.
type Rules struct {
	// Users and Groups are numbers of our user namespace: the effective user, and the
	// effective or one of the supplementary groups.
	Users, Groups []uint32
	// Cgroups are ids of control groups (version 2), see samehost.Conn.Cgroup. The
	// process has to be in the group itself, not in one below it.
	Cgroups []uint64
	// Key is known only to those who may be met. It has MinKey bytes or more, and is random.
	Key []byte
}

// MinKey is how long a key is at least, in bytes.
const MinKey = 16

// none reports whether nobody is let in beside processes of our user.
func (r *Rules) none() bool { return len(r.Users) == 0 && !r.look() }

// look reports whether somebody may be let in whose user is not known before.
func (r *Rules) look() bool { return len(r.Groups) > 0 || r.anyUser() }

// anyUser reports whether somebody may be let in whose user does not matter.
func (r *Rules) anyUser() bool { return len(r.Cgroups) > 0 || len(r.Key) > 0 }

// byKernel reports whether somebody may be let in by the kernel's word.
func (r *Rules) byKernel() bool { return len(r.Users) > 0 || len(r.Groups) > 0 || len(r.Cgroups) > 0 }
