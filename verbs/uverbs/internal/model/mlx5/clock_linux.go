//go:build amd64 || arm64

package mlx5

import (
	"time"

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

// clock is what the clock of the devices shows: one for all.
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
