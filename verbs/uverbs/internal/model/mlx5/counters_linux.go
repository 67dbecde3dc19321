//go:build amd64 || arm64

package mlx5

import (
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/frame"
)

// counters are for flows (struct mlx5_ib_mcounters), of which the model has none:
// nothing is ever counted.
type counters struct{}

// createCounters is core/uverbs_std_types_counters.c,
// UVERBS_HANDLER(UVERBS_METHOD_COUNTERS_CREATE), and counters.c, mlx5_ib_create_counters.
func (c *ucontext) createCounters(r *frame.Call) unix.Errno {
	return r.AnswerHandle(0, c.add(&counters{}))
}

// destroyCounters is core/uverbs_std_types_counters.c, uverbs_free_counters.
func (c *ucontext) destroyCounters(r *frame.Call) unix.Errno {
	if errno := c.knownCounters(r); errno != 0 {
		return errno
	}
	delete(c.objects, r.Handle(0))
	return 0
}

// readCounters is core/uverbs_std_types_counters.c, UVERBS_HANDLER(UVERBS_METHOD_COUNTERS_READ).
func (c *ucontext) readCounters(r *frame.Call) unix.Errno {
	if errno := c.knownCounters(r); errno != 0 {
		return errno
	}
	return unix.EINVAL // UVERBS_METHOD_COUNTERS_READ: no flow has them (usecnt)
}

func (c *ucontext) knownCounters(r *frame.Call) unix.Errno {
	if errno := c.known(r, 0); errno != 0 {
		return errno
	}
	if _, ok := lookup[*counters](c, r.Handle(0)); !ok {
		return unix.EINVAL // core/rdma_core.c, rdma_lookup_get_uobject
	}
	return 0
}
