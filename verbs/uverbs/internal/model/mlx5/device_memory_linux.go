//go:build amd64 || arm64

package mlx5

import (
	"cmp"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/fabric"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/frame"
)

// A deviceMemory is memory of the device that a program has asked for (struct mlx5_ib_dm_memic):
// whole pages, of which it is told where its part begins. The pages are the model's own memory,
// which the program may map.
type deviceMemory struct {
	fabric.DeviceMemory
	device      *Device
	page, pages int    // of the device
	begin       uint64 // in its pages
	length      uint64 // as the program asked for it
}

// The unit of sizes and the least alignment (dm.h, MLX5_MEMIC_BASE_SIZE and MLX5_MEMIC_BASE_ALIGN),
// and the largest that the device has.
const (
	memoryUnit      = 64
	leastAlignment  = 6 // log2
	mostAlignment   = 12
	typeMemory      = 0 // MLX5_IB_UAPI_DM_TYPE_MEMIC
	memoryZeroBased = 1 << 5
)

// allocMemory is core/uverbs_std_types_dm.c, UVERBS_HANDLER(UVERBS_METHOD_DM_ALLOC), and dm.c,
// handle_alloc_dm_memic and mlx5_cmd_alloc_memic.
func (c *ucontext) allocMemory(r *frame.Call) unix.Errno {
	m := &deviceMemory{device: c.device, length: r.Uint64(1)}
	size := (m.length + memoryUnit - 1) &^ (memoryUnit - 1)
	alignment := max(r.Uint64(2), leastAlignment)
	switch {
	case r.Uint64(attrMemoryType) != typeMemory:
		return unix.EOPNOTSUPP // dm.c, handle_alloc_dm_sw_icm: the device has no tables of a program's own
	case size == 0:
		return unix.EINVAL // mlx5_cmd_alloc_memic
	case alignment > mostAlignment:
		return unix.EINVAL // the same
	case size > memoryPages*pageSize || !m.take(int((size+pageSize-1)/pageSize)):
		return unix.ENOMEM // the same
	}
	// At the end of its pages, so that a program which takes it for their beginning
	// writes where nothing is.
	m.begin = (uint64(m.pages)*pageSize - size) &^ (1<<alignment - 1)
	return cmp.Or(r.AnswerHandle(0, c.add(m)), r.Answer(attrMemoryPage, le.AppendUint16(nil, uint16(m.page))),
		r.Answer(attrMemoryOffset, quads(m.begin)))
}

// take takes the first pages in a row that are free.
func (m *deviceMemory) take(pages int) bool {
	free := 0
	for i, taken := range m.device.memory {
		if free++; taken {
			free = 0
		}
		if free == pages {
			m.page, m.pages = i+1-pages, pages
			m.mark(true)
			return true
		}
	}
	return false
}

// release gives the pages back. The kernel does so when the program has unmapped them too, which
// the model does not see.
func (m *deviceMemory) release() { m.mark(false) }

func (m *deviceMemory) mark(taken bool) {
	for i := range m.pages {
		m.device.memory[m.page+i] = taken
	}
}

// freeMemory is UVERBS_HANDLER(UVERBS_METHOD_DM_FREE).
func (c *ucontext) freeMemory(r *frame.Call) unix.Errno {
	if errno := c.known(r, 0); errno != 0 {
		return errno
	}
	m, ok := lookup[*deviceMemory](c, r.Handle(0))
	switch {
	case !ok:
		return unix.EINVAL // core/rdma_core.c, rdma_lookup_get_uobject
	case c.inUse(m.Users > 0):
		return unix.EBUSY // core/uverbs_std_types_dm.c, uverbs_free_dm
	}
	m.release()
	delete(c.objects, r.Handle(0))
	return 0
}

// registerMemory is core/uverbs_std_types_mr.c, UVERBS_HANDLER(UVERBS_METHOD_DM_MR_REG), and
// mr.c, mlx5_ib_reg_dm_mr.
func (c *ucontext) registerMemory(r *frame.Call) unix.Errno {
	const allowed = 1<<4 - 1 | memoryZeroBased // MLX5_IB_DM_MEMIC_ALLOWED_ACCESS
	if errno := c.known(r, 3, 5); errno != 0 {
		return errno
	}
	pd, isPD := lookup[*fabric.PD](c, r.Handle(3))
	m, isMemory := lookup[*deviceMemory](c, r.Handle(5))
	offset, length, access := r.Uint64(1), r.Uint64(2), r.Uint64(4)
	switch {
	case !isPD || !isMemory:
		return unix.EINVAL // core/rdma_core.c, rdma_lookup_get_uobject
	case access&^supportedAccess != 0:
		return unix.EINVAL // core/uverbs_ioctl.c, uverbs_get_flags32
	case access&memoryZeroBased == 0:
		return unix.EINVAL // UVERBS_METHOD_DM_MR_REG
	case checkAccess(uint32(access)) != 0:
		return checkAccess(uint32(access))
	case offset > m.length || length > m.length-offset:
		return unix.EINVAL // UVERBS_METHOD_DM_MR_REG
	case access&^allowed != 0:
		return unix.EINVAL // mlx5_ib_reg_dm_mr
	}
	m.Users++
	at := c.pages[uint64(mmapMemory<<8+m.page)*pageSize+m.begin+offset:]
	region := &fabric.Region{PD: pd, Device: &m.DeviceMemory, Memory: frame.Self(),
		Start: uint64(uintptr(unsafe.Pointer(&at[0]))), Length: length, Access: uint32(access)}
	c.addRegion(region)
	return cmp.Or(r.AnswerHandle(0, region.Handle), r.Answer(6, words(region.Key)), r.Answer(7, words(region.Key)))
}

// checkMemoryMapping is main.c, mlx5_ib_mmap_offset. A mapping is of all pages.
func (c *ucontext) checkMemoryMapping(m frame.Mapping, index int) unix.Errno {
	for _, o := range c.objects {
		o, ok := o.(*deviceMemory)
		switch {
		case !ok || o.page != index:
			continue
		case m.Length != uint64(o.pages)*pageSize:
			return unix.EINVAL // core/ib_core_uverbs.c, rdma_user_mmap_pre
		}
		return 0
	}
	return unix.EINVAL // mlx5_ib_mmap_offset: there is no such entry
}
