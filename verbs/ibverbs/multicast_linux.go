//go:build amd64 || arm64

package ibverbs

import (
	"slices"
	"sync"
	"unsafe"

	"github.com/seed-b9b531af/ramjet/verbs"
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
	return q.use(func() error {
		q.memberOf.Lock()
		defer q.memberOf.Unlock()
		g := group{gid, lid}
		err := q.join(g)
		if err == nil && !slices.Contains(q.memberOf.groups, g) {
			q.memberOf.groups = append(q.memberOf.groups, g)
		}
		return err
	})
}

// DetachMulticast takes it out again.
func (q *qp) DetachMulticast(gid verbs.GID, lid uint16) error {
	return q.use(func() error {
		q.memberOf.Lock()
		defer q.memberOf.Unlock()
		g := group{gid, lid}
		err := q.leave(g)
		if err == nil {
			q.memberOf.groups = slices.DeleteFunc(q.memberOf.groups, func(other group) bool { return other == g })
		}
		return err
	})
}

func (q *qp) join(g group) error {
	return failed("ibv_attach_mcast", status(q.dev.lib.attachMcast, q.address, uintptr(unsafe.Pointer(&g.gid)), uintptr(g.lid)))
}

func (q *qp) leave(g group) error {
	return failed("ibv_detach_mcast", status(q.dev.lib.detachMcast, q.address, uintptr(unsafe.Pointer(&g.gid)), uintptr(g.lid)))
}

// leaveGroups is for a QP that is to be destroyed. The caller holds life for writing. What fails shows when the QP
// is in use still.
func (q *qp) leaveGroups() {
	q.memberOf.groups = slices.DeleteFunc(q.memberOf.groups, func(g group) bool { return q.leave(g) == nil })
}
