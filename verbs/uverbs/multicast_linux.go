package uverbs

import (
	"slices"
	"sync"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
)

// memberships are the multicast groups of a QP. The kernel destroys no QP that has some.
type memberships struct {
	sync.Mutex
	groups []group // guarded by the mutex
}

type group struct {
	gid verbs.GID
	lid uint16
}

// AttachMulticast makes a UD QP a member of a group.
func (q *qp) AttachMulticast(gid verbs.GID, lid uint16) error {
	q.memberOf.Lock()
	defer q.memberOf.Unlock()
	g := group{gid, lid}
	err := q.multicast(abi.CmdAttachMulticast, g)
	if err == nil && !slices.Contains(q.memberOf.groups, g) {
		q.memberOf.groups = append(q.memberOf.groups, g)
	}
	return err
}

// DetachMulticast takes it out again.
func (q *qp) DetachMulticast(gid verbs.GID, lid uint16) error {
	q.memberOf.Lock()
	defer q.memberOf.Unlock()
	g := group{gid, lid}
	err := q.multicast(abi.CmdDetachMulticast, g)
	if err == nil {
		q.memberOf.groups = slices.DeleteFunc(q.memberOf.groups, func(other group) bool { return other == g })
	}
	return err
}

func (q *qp) multicast(cmd abi.Command, g group) error {
	q.life.RLock()
	defer q.life.RUnlock()
	if q.gone {
		return verbs.ErrClosed
	}
	return q.giveMulticast(cmd, g)
}

func (q *qp) giveMulticast(cmd abi.Command, g group) error {
	return q.dev.command(cmd, abi.BytesOf(&abi.MulticastIn{GID: g.gid, QPHandle: q.handle, MLID: g.lid}), nil)
}

// leaveGroups is for a QP that is to be destroyed, and returns the groups that it has left. The caller
// holds life. What fails shows when the QP is in use still.
func (q *qp) leaveGroups() (left []group) {
	stay := q.memberOf.groups[:0]
	for _, g := range q.memberOf.groups {
		if q.giveMulticast(abi.CmdDetachMulticast, g) == nil {
			left = append(left, g)
		} else {
			stay = append(stay, g)
		}
	}
	q.memberOf.groups = stay
	return left
}

// rejoin is for a QP that was not destroyed.
func (q *qp) rejoin(groups []group) {
	for _, g := range groups {
		if q.giveMulticast(abi.CmdAttachMulticast, g) == nil {
			q.memberOf.groups = append(q.memberOf.groups, g)
		}
	}
}
