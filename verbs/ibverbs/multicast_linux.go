//go:build amd64 || arm64

package ibverbs

import (
	"unsafe"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/internal/multicast"
)

// AttachMulticast makes a UD QP a member of a group.
func (q *qp) AttachMulticast(gid verbs.GID, lid uint16) error {
	return q.use(func() error { return q.groups.Attach(multicast.Group{GID: gid, LID: lid}, q.attach) })
}

// DetachMulticast takes it out again.
func (q *qp) DetachMulticast(gid verbs.GID, lid uint16) error {
	return q.use(func() error { return q.groups.Detach(multicast.Group{GID: gid, LID: lid}, q.detach) })
}

// attach, as detach, is called by who holds life.
func (q *qp) attach(g multicast.Group) error {
	return failed("ibv_attach_mcast", status(q.dev.lib.attachMcast, q.address, uintptr(unsafe.Pointer(&g.GID)), uintptr(g.LID)))
}

func (q *qp) detach(g multicast.Group) error {
	return failed("ibv_detach_mcast", status(q.dev.lib.detachMcast, q.address, uintptr(unsafe.Pointer(&g.GID)), uintptr(g.LID)))
}
