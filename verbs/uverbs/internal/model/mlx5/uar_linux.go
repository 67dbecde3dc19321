//go:build amd64 || arm64

package mlx5

import (
	"cmp"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/frame"
)

// Layout of what a program maps of the device node: the offset is (command << 8 | page) *
// page size (include/uapi/rdma/mlx5-abi.h, MLX5_IB_MMAP_*; main.c, mlx5_ib_mmap). The static
// UARs of a context can be mapped in two ways, with pages of their own here. Dynamic ones have
// an offset by themselves (main.c, mlx5_entry_to_mmap_offset).
const (
	pageSize      = 4096
	mmapRegular   = 0 // write-combining where the platform has it
	mmapNonCache  = 3
	mmapCoreClock = 5
	mmapClockInfo = 7
	mmapMemory    = 8 // of the device
	mmapDynamic   = 9 // MLX5_IB_MMAP_OFFSET_START
	dynamicUARs   = 255
	nodePages     = (mmapDynamic<<8 + dynamicUARs) * pageSize

	bfregsOfUser = 2   // of each page those that are not for fast paths (MLX5_NON_FP_BFREGS_PER_UAR)
	mostBfregs   = 512 // mlx5_ib.h, MLX5_MAX_BFREGS
	bfregSize    = 512
	bfregOffset  = 0x800
	cqRegister   = 0x20
	bfregsOfPage = 4
)

// taken is what the model leaves in a register that it has looked at. No doorbell has this
// value: its command, or its WQE index with its opcode, do not exist.
const taken = ^uint64(0)

// A uar is a page of registers: the doorbell of CQs, and the two halves of each BlueFlame
// register. What was stored is replaced by [taken], so that each later store is seen, the same
// value again too.
type uar struct {
	handle    uint32 // of a dynamic one
	page      uint32 // as commands name it; of a static one its index
	dynamic   int    // index of its page, of a dynamic one
	cq        []*atomic.Uint64
	bf        []half
	nonCached bool
	mapped    int // the ways in which a program has mapped it: a bit for each command
	// Whether the last look has found something in the registers of CQs, and of QPs.
	armed, rung bool
}

// half of a BlueFlame register: its first eight bytes, which are the doorbell, and the next, which
// are written with whole WQEs alone.
type half struct {
	doorbell, rest *atomic.Uint64
}

// add makes the registers of a page at an offset those of the UAR.
func (u *uar) add(pages []byte, base int) {
	register := func(offset int) *atomic.Uint64 {
		r := (*atomic.Uint64)(unsafe.Pointer(&pages[base+offset]))
		r.Store(taken)
		return r
	}
	u.cq = append(u.cq, register(cqRegister))
	for i := range 2 * bfregsOfPage {
		offset := bfregOffset + i*bfregSize/2
		u.bf = append(u.bf, half{register(offset), register(offset + 8)})
	}
}

// addStaticUARs makes the UARs that a context has by itself, for so many registers. The last low
// ones are each for one QP alone.
func (c *ucontext) addStaticUARs(total, low uint32) {
	c.bfregs = bfregs{count: make([]int, total), low: int(low)}
	for i := range total / bfregsOfUser {
		u := &uar{page: i}
		for _, command := range []int{mmapRegular, mmapNonCache} {
			u.add(c.pages, (command<<8+int(i))*pageSize)
		}
		c.uars = append(c.uars, u)
	}
	c.static = c.uars
}

// bfregs are the registers of a context's static UARs, with how many QPs have each.
type bfregs struct {
	count  []int
	low    int  // those at the end that QPs have alone
	simple bool // the program's GET_CONTEXT is of the first version: all QPs have register 0
}

// alloc gives a QP a register: one of its own as long as there are, then the one of the others that
// the fewest have. Register 0 is for doorbells alone, and is given if there are no others (qp.c,
// alloc_bfreg, alloc_high_class_bfreg and alloc_med_class_bfreg).
func (b *bfregs) alloc() int {
	found := 0
	shared := max(len(b.count)-b.low-1, 0)
	if !b.simple {
		for i := shared + 1; i < len(b.count); i++ {
			if b.count[i] == 0 {
				b.count[i]++
				return i
			}
		}
		for i := 1; i <= shared; i++ {
			if found == 0 || b.count[i] < b.count[found] {
				found = i
			}
		}
	}
	b.count[found]++
	return found
}

// adjusted is how the answer of CREATE_QP names a register: among all of its page
// (qp.c, adjust_bfregn).
func adjusted(bfreg int) uint32 { return uint32(bfreg/bfregsOfUser*bfregsOfPage + bfreg%bfregsOfUser) }

// Methods and attributes of UARs (include/uapi/rdma/mlx5_user_ioctl_cmds.h).
const (
	attrUARHandle = 0x1000
	attrUARType   = 0x1001
	attrUAROffset = 0x1002
	attrUARLength = 0x1003
	attrUARPage   = 0x1004
	typeBlueFlame = 0
	typeNonCached = 1
	objectUAR     = 0x1008
	driverMethod  = 0x1000
)

// allocUAR is main.c, UVERBS_HANDLER(MLX5_IB_METHOD_UAR_OBJ_ALLOC).
func (c *ucontext) allocUAR(r *frame.Call) unix.Errno {
	kind := r.Uint64(attrUARType)
	if kind != typeBlueFlame && kind != typeNonCached {
		return unix.EOPNOTSUPP // main.c, MLX5_IB_METHOD_UAR_OBJ_ALLOC
	}
	if kind == typeBlueFlame && c.device.config.NoBlueFlame {
		return unix.EOPNOTSUPP // the same: wc_support
	}
	index := 0
	for c.dynamicUAR(index) != nil {
		index++
	}
	if index >= dynamicUARs {
		return unix.ENOMEM // core/ib_core_uverbs.c, rdma_user_mmap_entry_insert_range
	}
	u := &uar{page: uint32(uint16(c.device.Next())), dynamic: index, nonCached: kind == typeNonCached}
	offset := (mmapDynamic<<8 | index) * pageSize
	u.add(c.pages, offset)
	u.handle = c.add(u)
	c.uars = append(c.uars, u)
	return cmp.Or(r.AnswerHandle(attrUARHandle, u.handle), r.Answer(attrUAROffset, quads(uint64(offset))),
		r.Answer(attrUARPage, words(u.page)), r.Answer(attrUARLength, words(pageSize)))
}

func (c *ucontext) destroyUAR(r *frame.Call) unix.Errno {
	u, ok := lookup[*uar](c, r.Handle(attrUARHandle))
	if !ok {
		return unix.ENOENT // core/rdma_core.c, rdma_lookup_get_uobject
	}
	// The kernel does not ask whether queues have it. perftest leaves a CQ behind.
	delete(c.objects, u.handle)
	c.uars = without(c.uars, u)
	return 0
}

func (c *ucontext) dynamicUAR(index int) *uar {
	for _, u := range c.uars {
		if u.handle != 0 && u.dynamic == index {
			return u
		}
	}
	return nil
}

// uarOfPage returns the dynamic UAR that commands name by its page.
func (c *ucontext) uarOfPage(page uint32) *uar {
	for _, u := range c.uars {
		if u.handle != 0 && u.page == page {
			return u
		}
	}
	return nil
}

// Map is main.c, mlx5_ib_mmap.
func (c *ucontext) Map(m frame.Mapping) unix.Errno {
	c.device.Fabric().Lock()
	defer c.device.Fabric().Unlock()
	page := m.Offset / pageSize
	command, index := page>>8&0xff, int(page&0xff|page>>16<<8)
	switch {
	case c.device.Removed:
		return unix.EIO // core/uverbs_main.c, ib_uverbs_mmap: disassociated
	case c.memory == nil:
		return unix.EINVAL // core/uverbs_main.c, ib_uverbs_mmap: there is no context
	case command == mmapCoreClock:
		return c.mapCoreClock(m, index)
	case m.Flags&unix.MAP_SHARED == 0:
		return unix.EINVAL // main.c, uar_mmap; core/ib_core_uverbs.c, rdma_user_mmap_pre
	case command == mmapMemory:
		return c.checkMemoryMapping(m, index)
	case m.Length != pageSize:
		return unix.EINVAL // the same
	case command == mmapClockInfo:
		return checkClockMapping(m, index)
	case command == mmapRegular || command == mmapNonCache:
		if index >= len(c.static) {
			return unix.EINVAL // main.c, uar_mmap: get_index
		}
		c.static[index].checkMapping(c, command)
	case command != mmapDynamic || c.dynamicUAR(index) == nil:
		return unix.EINVAL // mlx5_ib_mmap_offset
	}
	return 0
}

// checkMapping has a program map a UAR in one way. Without a word, the kernel of amd64 gives a
// second mapping the memory type of the first (arch/x86/mm/pat/memtype.c, reserve_pfn_range); on
// arm64 two that differ promise little (Arm ARM, B2.8).
func (u *uar) checkMapping(c *ucontext, command uint64) {
	if u.mapped |= 1 << command; u.mapped&^(1<<command) != 0 {
		c.device.Fabric().Violation("UAR %#x is mapped with write-combining and without", u.page)
	}
}

// takeDoorbells says whether the program has rung, and each UAR whether it was there.
func (c *ucontext) takeDoorbells() bool {
	found := false
	for _, u := range c.uars {
		u.armed, u.rung = false, false
		for _, r := range u.cq {
			if v := r.Load(); v != taken {
				r.Store(taken)
				c.checkCQDoorbell(u, swap(v))
				u.armed = true
			}
		}
		for i, r := range u.bf {
			if v := r.doorbell.Load(); v != taken {
				r.doorbell.Store(taken)
				c.checkSendDoorbell(u, swap(v))
				u.rung = true
			}
			if r.rest.Load() != taken {
				r.rest.Store(taken)
				c.device.Fabric().Counted.BlueFlames++
				if c.device.config.NoBlueFlame {
					c.device.Fabric().Violation("a WQE is written to a register of a device without BlueFlame")
				}
				if first := u.handle == 0 && u.page == 0 && i%(2*bfregsOfPage) < 2; first { // main.c, NUM_NON_BLUE_FLAME_BFREGS
					c.device.Fabric().Violation("a WQE is written to register 0, which is for doorbells alone")
				}
			}
		}
		found = found || u.armed || u.rung
	}
	return found
}

// checkCQDoorbell checks what was stored last: the arm command and the number of a CQ.
func (c *ucontext) checkCQDoorbell(u *uar, v uint64) {
	number := uint32(v)
	for _, q := range c.cqs {
		if q.cqn == number {
			if q.uar != u {
				c.device.Fabric().Violation("CQ %#x is armed in UAR %#x, and has UAR %#x", number, u.page, q.uar.page)
			}
			return
		}
	}
	c.unknownDoorbell(u, "CQ", number)
}

// checkSendDoorbell checks what was stored last: the first 8 bytes of a WQE.
func (c *ucontext) checkSendDoorbell(u *uar, v uint64) {
	number := uint32(v) >> 8
	for _, q := range c.qps {
		if q.Number == number {
			if q.uar != u {
				c.device.Fabric().Violation("the doorbell of QP %#x is rung in UAR %#x, and it has UAR %#x", number, u.page, q.uar.page)
			}
			return
		}
	}
	c.unknownDoorbell(u, "QP", number)
}

func (c *ucontext) unknownDoorbell(u *uar, what string, number uint32) {
	if !c.past[number] { // or it was destroyed before the model looked
		c.device.Fabric().Violation("UAR %#x: a doorbell is rung for %s %#x, which the context does not have", u.page, what, number)
	}
}
