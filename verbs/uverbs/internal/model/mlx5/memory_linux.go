//go:build amd64 || arm64

package mlx5

import (
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/fabric"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/frame"
)

func (c *ucontext) allocPD(r *frame.Request) unix.Errno {
	return r.Answer(words(c.add(&fabric.PD{})), words(c.device.Next()))
}

func (c *ucontext) deallocPD(r *frame.Request) unix.Errno {
	handle := le.Uint32(r.Core)
	pd, ok := lookup[*fabric.PD](c, handle)
	if !ok {
		return unix.ENOENT // core/rdma_core.c, lookup_get_idr_uobject
	}
	if c.inUse(pd.Users > 0) {
		return unix.EBUSY // core/uverbs_std_types.c, uverbs_free_pd
	}
	delete(c.objects, handle)
	return 0
}

func (c *ucontext) regMR(r *frame.Request) unix.Errno {
	b := r.Core
	m := &fabric.Region{Memory: c.memory, Start: le.Uint64(b[8:]), Length: le.Uint64(b[16:]), Address: le.Uint64(b[24:]),
		Access: le.Uint32(b[36:])}
	var ok bool
	switch m.PD, ok = lookup[*fabric.PD](c, le.Uint32(b[32:])); {
	case m.Start%pageSize != m.Address%pageSize:
		return unix.EINVAL // uverbs_cmd.c, ib_uverbs_reg_mr
	case checkAccess(m.Access) != 0:
		return checkAccess(m.Access)
	case !ok:
		return unix.EINVAL // uverbs_cmd.c, ib_uverbs_reg_mr
	}
	if errno := c.checkMemory(m); errno != 0 {
		return errno
	}
	c.addRegion(m)
	return r.Answer(words(m.Handle, m.Key, m.Key), nil)
}

// pinnable says whether the kernel could pin the memory of a region (core/umem.c, ib_umem_get; for
// writing, as include/rdma/ib_verbs.h, ib_access_writable, says).
func (c *ucontext) pinnable(m *fabric.Region) bool {
	const bind = 1 << 4
	if m.Access&(fabric.AccessLocalWrite|fabric.AccessRemoteWrite|fabric.AccessRemoteAtomic|bind) != 0 {
		return c.writable(m.Start, m.Length)
	}
	return c.readable(m.Start, m.Length)
}

// checkMemory is mr.c, mlx5_ib_reg_user_mr: what a region may be of.
func (c *ucontext) checkMemory(m *fabric.Region) unix.Errno {
	end := m.Start + m.Length
	if m.Access&onDemand == 0 {
		switch {
		case m.Length == 0 || end < m.Start:
			return unix.EINVAL // core/umem.c, ib_umem_get
		case !c.pinnable(m):
			return unix.EFAULT // the same
		}
		return 0
	}
	first, last := m.Start&^(pageSize-1), (end+pageSize-1)&^(pageSize-1)
	switch implicit := m.Start == 0 && m.Length == allMemory; {
	case implicit && m.Address != 0:
		return unix.EINVAL // mr.c, create_user_odp_mr
	case implicit && m.Access&hugeTLB != 0:
		return unix.EINVAL // core/umem_odp.c, ib_umem_odp_alloc_implicit
	case implicit:
		return 0
	case end < m.Start || last < pageSize:
		return unix.EOVERFLOW // core/umem_odp.c, ib_init_umem_odp
	case last == first:
		return unix.EINVAL // the same: no pages
	}
	return 0
}

// addRegion gives a region its handle and its key.
func (c *ucontext) addRegion(m *fabric.Region) {
	m.PD.Users++
	m.Handle = c.add(m)
	// The variant in the low byte differs from one key to the next, as mkeys of the driver do.
	m.Key = c.device.Next()<<8 | m.Handle*0x35&0xff
	if m.Key == invalidKey {
		m.Key++
	}
	c.device.Regions[m.Key] = m
}

// supportedAccess are the rights that there are, also those that need not be known
// (IB_ACCESS_SUPPORTED, IB_ACCESS_OPTIONAL).
const supportedAccess = 1<<10 - 1 | 1<<30 - 1<<20

// onDemand is IB_ACCESS_ON_DEMAND: the memory is not pinned, and may not be there when a
// request comes for it.
const onDemand = fabric.AccessOnDemand

// changedInPlace are the rights that the driver gives and takes without making the region anew
// (mr.c, can_use_umr_rereg_access). One on demand that is made anew is made of the memory that the
// request names, also if that is not to change.
const changedInPlace = fabric.AccessLocalWrite | fabric.AccessRemoteWrite | fabric.AccessRemoteRead | fabric.AccessRemoteAtomic | relaxedOrdering

// relaxedOrdering is IB_ACCESS_RELAXED_ORDERING.
const relaxedOrdering = 1 << 20

// hugeTLB is IB_ACCESS_HUGETLB, and allMemory the length of a region of whatever the
// process has, if it begins at 0 and is paged on demand (implicit).
const (
	hugeTLB   = 1 << 7
	allMemory = ^uint64(0)
)

// checkAccess is include/rdma/ib_verbs.h, ib_check_mr_access, for a device without FLUSH.
func checkAccess(access uint32) unix.Errno {
	const flush = 1<<8 | 1<<9
	switch {
	case access&(fabric.AccessRemoteWrite|fabric.AccessRemoteAtomic) != 0 && access&fabric.AccessLocalWrite == 0:
		return unix.EINVAL // include/rdma/ib_verbs.h, ib_check_mr_access
	case access&^supportedAccess != 0:
		return unix.EINVAL // the same
	case access&flush != 0:
		return unix.EOPNOTSUPP // the same
	}
	return 0
}

// reregMR changes a region in place (uverbs_cmd.c, ib_uverbs_rereg_mr; mr.c,
// mlx5_ib_rereg_user_mr).
func (c *ucontext) reregMR(r *frame.Request) unix.Errno {
	const translation, domain, access, supported = 1, 2, 4, 7
	b := r.Core
	flags := le.Uint32(b[12:])
	m, ok := lookup[*fabric.Region](c, le.Uint32(b[8:]))
	changed := fabric.Region{}
	switch {
	case flags == 0:
		return unix.EINVAL // ib_uverbs_rereg_mr
	case flags&^supported != 0:
		return unix.EOPNOTSUPP // the same
	case flags&translation != 0 && le.Uint64(b[16:])%pageSize != le.Uint64(b[32:])%pageSize:
		return unix.EINVAL // the same
	case !ok:
		return unix.ENOENT // core/rdma_core.c, lookup_get_idr_uobject
	case m.Device != nil:
		return unix.EINVAL // ib_uverbs_rereg_mr: memory of the device
	}
	changed = *m
	if flags&access != 0 {
		changed.Access = le.Uint32(b[44:])
		if errno := checkAccess(changed.Access); errno != 0 {
			return errno
		}
	}
	if flags&domain != 0 {
		if changed.PD, ok = lookup[*fabric.PD](c, le.Uint32(b[40:])); !ok {
			return unix.EINVAL // ib_uverbs_rereg_mr
		}
	}
	if flags&translation != 0 || m.Access&onDemand != 0 && (m.Access^changed.Access)&^changedInPlace != 0 {
		changed.Start, changed.Length, changed.Address = le.Uint64(b[16:]), le.Uint64(b[24:]), le.Uint64(b[32:])
		if errno := c.checkMemory(&changed); errno != 0 {
			return errno
		}
	}
	m.PD.Users--
	changed.PD.Users++
	*m = changed
	return r.Answer(words(m.Key, m.Key), nil)
}

func (c *ucontext) deregMR(r *frame.Request) unix.Errno {
	handle := le.Uint32(r.Core)
	m, ok := lookup[*fabric.Region](c, handle)
	if !ok {
		return unix.ENOENT // core/rdma_core.c, lookup_get_idr_uobject
	}
	m.PD.Users--
	if m.Device != nil {
		m.Device.Users--
	}
	delete(c.device.Regions, m.Key)
	delete(c.objects, handle)
	return 0
}

// registerDMABuf is core/uverbs_std_types_mr.c, UVERBS_HANDLER(UVERBS_METHOD_REG_DMABUF_MR), and
// mr.c, mlx5_ib_reg_user_mr_dmabuf.
func (c *ucontext) registerDMABuf(r *frame.Call) unix.Errno {
	const (
		supported  = 1<<4 - 1 | relaxedOrdering
		dataDirect = 1 << 0
	)
	offset, length, iova, access := r.Uint64(2), r.Uint64(3), r.Uint64(4), r.Uint64(6)
	if errno := c.known(r, 1); errno != 0 {
		return errno
	}
	_, ok := lookup[*fabric.PD](c, r.Handle(1))
	switch {
	case !ok:
		return unix.EINVAL // core/rdma_core.c, rdma_lookup_get_uobject
	case offset%pageSize != iova%pageSize:
		return unix.EINVAL // UVERBS_METHOD_REG_DMABUF_MR
	case access&^supported != 0:
		return unix.EINVAL // core/uverbs_ioctl.c, uverbs_get_flags32
	case checkAccess(uint32(access)) != 0:
		return checkAccess(uint32(access))
	case !c.device.config.DMABuf:
		return unix.EOPNOTSUPP // the model cannot reach the memory of one
	}
	switch flags := r.Uint64(attrDMABufAccess); {
	case flags&^dataDirect != 0:
		return unix.EINVAL // core/uverbs_ioctl.c, uverbs_get_flags32
	case flags&dataDirect != 0 && iova%pageSize != 0:
		return unix.EOPNOTSUPP // mr.c, reg_user_mr_dmabuf_by_data_direct
	case flags&dataDirect != 0:
		return unix.EINVAL // the same: there is no such function of the device
	}
	if offset+length < offset {
		return unix.EINVAL // core/umem_dmabuf.c, ib_umem_dmabuf_get_with_dma_device
	}
	switch isBuffer, ok := c.memory.DMABuf(int(int32(r.Uint64(5)))); {
	case !ok:
		return unix.EBADF // drivers/dma-buf/dma-buf.c, dma_buf_get
	case !isBuffer:
		return unix.EINVAL // the same
	}
	return unix.EOPNOTSUPP // the model cannot reach the memory of one
}

// advise is core/uverbs_std_types_mr.c, UVERBS_HANDLER(UVERBS_METHOD_ADVISE_MR), and mr.c,
// mlx5_ib_advise_mr. The model pages nothing in: its process does, when requests are executed.
func (c *ucontext) advise(r *frame.Call) unix.Errno {
	const flush, prefetchWrite, prefetchNoFault = 1 << 0, 1, 2 // IB_UVERBS_ADVISE_MR_*
	if errno := c.known(r, 0); errno != 0 {
		return errno
	}
	pd, ok := lookup[*fabric.PD](c, r.Handle(0))
	advice, list := r.Uint64(1), r.In(3)
	switch {
	case !ok:
		return unix.EINVAL // core/rdma_core.c, rdma_lookup_get_uobject
	case r.Uint64(2)&^flush != 0:
		return unix.EINVAL // core/uverbs_ioctl.c, uverbs_get_flags32
	case len(list)%16 != 0:
		return unix.EINVAL // include/rdma/uverbs_ioctl.h, uverbs_attr_ptr_get_array_size
	case advice > prefetchNoFault:
		return unix.EOPNOTSUPP // mlx5_ib_advise_mr
	}
	for ; len(list) > 0; list = list[16:] {
		addr, size := le.Uint64(list), uint64(le.Uint32(list[8:]))
		switch m := c.device.Regions[le.Uint32(list[12:])]; {
		case m == nil || m.Access&onDemand == 0:
			return unix.ENOENT // odp.c, get_prefetchable_mr: it is not among odp_mkeys
		case m.PD != pd || advice == prefetchWrite && m.Access&fabric.AccessLocalWrite == 0:
			return unix.EPERM // odp.c, get_prefetchable_mr
		case addr < m.Address || addr-m.Address > m.Length || size > m.Length-(addr-m.Address):
			return unix.EFAULT // odp.c, pagefault_mr; odp.c, pagefault_real_mr
		}
	}
	return 0
}
