//go:build amd64 || arm64

package mlx5

import (
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/frame"
)

// The clock of a ConnectX-5: 64 ns are 5 ticks.
const (
	clockKHz      = 78125
	clockTicks    = 5
	clockShift    = 6
	timestampMask = 1<<63 - 1 // main.c, mlx5_ib_query_device
)

// coreClockOffset is where the clock is in its page (include/linux/mlx5/device.h, struct
// mlx5_init_seg: internal_timer_h).
const coreClockOffset = 0

// clock is what the clock of the devices shows: one for all. The caller has the lock of the fabric, so
// that nobody sees it go back.
func clock() uint64 { return uint64(time.Now().UnixNano()) >> clockShift * clockTicks }

// putClockInfo writes struct mlx5_ib_clock_info, as mlx5_core does every few seconds
// (core/lib/clock.c, mlx5_update_clock_info_page). Here the clocks do not drift, so once is enough.
func (c *ucontext) putClockInfo() {
	const page, shift = mmapClockInfo << 8 * pageSize, 24
	b := c.pages[page:][:pageSize]
	now := clock()
	le.PutUint32(b, 2) // sign: written
	le.PutUint64(b[8:], now/clockTicks<<clockShift)
	le.PutUint64(b[16:], now)
	le.PutUint32(b[32:], 1<<(clockShift+shift)/clockTicks+1) // rounded up
	le.PutUint32(b[36:], shift)
	le.PutUint64(b[40:], timestampMask)
}

// checkClockMapping is main.c, mlx5_ib_mmap_clock_info_page.
func checkClockMapping(m frame.Mapping, index int) unix.Errno {
	switch {
	case index != 0:
		return unix.EOPNOTSUPP // main.c, mlx5_ib_mmap_clock_info_page
	case m.Protection&(unix.PROT_WRITE|unix.PROT_EXEC) != 0:
		return unix.EPERM // the same
	}
	return 0
}

// mapCoreClock is main.c, mlx5_ib_mmap, of the page that shows the clock. The model cannot see that it
// is unmapped.
func (c *ucontext) mapCoreClock(m frame.Mapping, index int) unix.Errno {
	switch {
	case m.Length != pageSize:
		return unix.EINVAL // mlx5_ib_mmap
	case m.Protection&unix.PROT_WRITE != 0:
		return unix.EPERM // the same
	case m.Flags&unix.MAP_SHARED == 0:
		return unix.EINVAL // core/ib_core_uverbs.c, rdma_user_mmap_io
	case index != 0:
		return unix.EINVAL // the model has one such page; the kernel does not look at the index
	}
	const page = mmapCoreClock << 8 * pageSize
	c.clock = (*atomic.Uint64)(unsafe.Pointer(&c.pages[page+coreClockOffset]))
	c.device.tick()
	return 0
}

// tick has the clock show what it is, to all programs that have mapped it, and returns that. It is called
// at each look at the device's registers, and for each time that a completion is given: so no program
// that has a completion sees an earlier time, or has seen a later one.
func (d *Device) tick() uint64 {
	now := clock()
	for _, c := range d.contexts {
		if c.clock != nil {
			c.clock.Store(swap(now))
		}
	}
	return now
}

// stopClock has programs read what they do of a device that was removed, whose page the kernel has
// replaced with the one of zeros (core/uverbs_main.c, uverbs_user_mmap_disassociate and rdma_umap_fault).
func (d *Device) stopClock() {
	for _, c := range d.contexts {
		if c.clock != nil {
			c.clock.Store(0)
		}
	}
}
