package softcm

import (
	"fmt"
	"slices"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/verbs/samehost"
)

// knows reports whether the kernel's word is enough to let a peer in.
func (f *fabric) knows(c *samehost.Conn) bool {
	p := c.Peer()
	if allow := policy(f.allow); allow != nil && allow(p) || allow == nil && p.SameUser() {
		return true
	}
	if slices.ContainsFunc(f.rules.Users, p.IsUser) || c.InGroup(f.rules.Groups) {
		return true
	}
	if len(f.rules.Cgroups) == 0 {
		return false
	}
	id, err := c.Cgroup()
	return err == nil && slices.Contains(f.rules.Cgroups, id)
}

// denies says who listens whom the rules do not let in, and what they cannot know of them.
func (f *fabric) denies(sock *socket) error {
	p := sock.Peer()
	err := fmt.Errorf("%w: process %d of user %d listens", rcm.ErrPeerDenied, p.PID, p.UID)
	if len(f.rules.Cgroups) > 0 {
		if _, unknown := sock.Cgroup(); unknown != nil {
			err = fmt.Errorf("%w: %w", err, unknown)
		}
	}
	return err
}

func everybody(samehost.Peer) bool { return true }
