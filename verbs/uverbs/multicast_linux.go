package uverbs

import (
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
)

// AttachMulticast makes a UD QP a member of a group. The kernel ends its memberships with it.
func (q *qp) AttachMulticast(gid verbs.GID, lid uint16) error {
	return q.multicast(abi.CmdAttachMulticast, gid, lid)
}

// DetachMulticast takes it out again.
func (q *qp) DetachMulticast(gid verbs.GID, lid uint16) error {
	return q.multicast(abi.CmdDetachMulticast, gid, lid)
}

func (q *qp) multicast(cmd abi.Command, gid verbs.GID, lid uint16) error {
	q.life.RLock()
	defer q.life.RUnlock()
	if q.gone {
		return verbs.ErrClosed
	}
	return q.dev.command(cmd, abi.BytesOf(&abi.MulticastIn{GID: gid, QPHandle: q.handle, MLID: lid}), nil)
}
