//go:build amd64 || arm64

package mlx5

import (
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/fabric"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/frame"
)

// addressHandle exists for its handle: the driver puts the address into each WQE by itself.
type addressHandle struct{ pd *fabric.PD }

func (c *ucontext) createAH(r *frame.Request) unix.Errno {
	pd, ok := lookup[*fabric.PD](c, le.Uint32(r.Core[16:]))
	if !ok {
		return unix.EINVAL // uverbs_cmd.c, ib_uverbs_create_ah
	}
	path := r.Core[24:56] // struct ib_uverbs_ah_attr
	if path[30] != 1 {
		return unix.EINVAL // uverbs_cmd.c, ib_uverbs_create_ah: port
	}
	global, source := path[29] != 0, path[20]
	if errno := c.device.CheckPath(global, source); errno != 0 {
		return errno
	}
	var answer []byte
	if c.device.Link == fabric.Ethernet {
		const size = 10 // through dmac of struct mlx5_ib_create_ah_resp
		if r.DriverRoom(4) < size {
			return unix.EINVAL // ah.c, mlx5_ib_create_ah
		}
		mac, ok := c.device.ResolveMAC([16]byte(path[:16]), source)
		if !ok {
			return unix.EHOSTUNREACH // core/verbs.c, ib_resolve_unicast_gid_dmac
		}
		answer = append(words(20), mac[:]...)
	}
	pd.Users++
	return r.Answer(words(c.add(&addressHandle{pd})), answer)
}

func (c *ucontext) destroyAH(r *frame.Request) unix.Errno {
	handle := le.Uint32(r.Core)
	ah, ok := lookup[*addressHandle](c, handle)
	if !ok {
		return unix.ENOENT // core/rdma_core.c, lookup_get_idr_uobject
	}
	ah.pd.Users--
	delete(c.objects, handle)
	return 0
}
