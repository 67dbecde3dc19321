//go:build amd64 || arm64

package mlx5

import (
	"fmt"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
)

// clockInfo is struct mlx5_ib_clock_info, in a page that the kernel writes every few
// seconds: what its wall clock (nanoseconds) was when that of the device was cycles, and how a tick
// of the one is some of the other. It makes sign odd before it writes, and even after.
type clockInfo struct {
	sign   atomic.Uint32
	_      uint32
	nsec   atomic.Uint64
	cycles atomic.Uint64
	_      uint64 // frac: less than a nanosecond
	mult   atomic.Uint32
	shift  atomic.Uint32
	mask   atomic.Uint64
	_      uint64 // overflow_period
}

// mapClock maps the page, where the kernel has it. A device can do without.
func (c *context) mapClock() {
	if c.out.clockInfoVersions&clockInfoV1 == 0 {
		return
	}
	if page, err := c.mem.Map(mmapClockInfo<<8*pageSize, pageSize, driver.MayRead); err == nil {
		c.clock = page
	}
}

// clockTries bounds how often the kernel may be found writing.
const clockTries = 1000

// WallTime reads the page until it is whole.
func (c *context) WallTime(ticks uint64) (time.Time, error) {
	if c.clock == nil {
		return time.Time{}, verbs.ErrUnsupported
	}
	info := abi.ViewAt[clockInfo](c.clock, 0)
	for range clockTries {
		sign := info.sign.Load()
		nsec, cycles, mask := info.nsec.Load(), info.cycles.Load(), info.mask.Load()
		mult, shift := info.mult.Load(), info.shift.Load()
		if sign&1 == 0 && info.sign.Load() == sign {
			return time.Unix(0, int64(nsec+sinceThen(ticks-cycles, mask, mult, shift))), nil
		}
	}
	return time.Time{}, fmt.Errorf("%w: the kernel is setting its clock", verbs.ErrBusy)
}

// sinceThen is how many nanoseconds ticks are. The upper half of what fits into the mask are
// ticks of the past.
func sinceThen(ticks, mask uint64, mult, shift uint32) uint64 {
	nanoseconds := func(ticks uint64) uint64 {
		high, low := bits.Mul64(ticks&mask, uint64(mult))
		return high<<(64-shift) | low>>shift
	}
	if ticks&mask > mask/2 {
		return -nanoseconds(-ticks)
	}
	return nanoseconds(ticks)
}
