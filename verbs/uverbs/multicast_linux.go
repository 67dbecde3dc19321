package uverbs

import (
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/internal/multicast"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
)

// AttachMulticast makes a UD QP a member of a group.
func (q *qp) AttachMulticast(gid verbs.GID, lid uint16) error {
	q.life.RLock()
	defer q.life.RUnlock()
	if q.gone {
		return verbs.ErrClosed
	}
	return q.groups.Attach(multicast.Group{GID: gid, LID: lid}, q.attach)
}

// DetachMulticast takes it out again.
func (q *qp) DetachMulticast(gid verbs.GID, lid uint16) error {
	q.life.RLock()
	defer q.life.RUnlock()
	if q.gone {
		return verbs.ErrClosed
	}
	return q.groups.Detach(multicast.Group{GID: gid, LID: lid}, q.detach)
}

// attach, as detach, is called by who holds life.
func (q *qp) attach(g multicast.Group) error { return q.multicast(abi.CmdAttachMulticast, g) }

func (q *qp) detach(g multicast.Group) error { return q.multicast(abi.CmdDetachMulticast, g) }

func (q *qp) multicast(cmd abi.Command, g multicast.Group) error {
	return q.dev.command(cmd, abi.BytesOf(&abi.MulticastIn{GID: g.GID, QPHandle: q.handle, MLID: g.LID}), nil)
}
