//go:build amd64 || arm64

package mlx5

import (
	"fmt"
	"math/bits"
	"sync"
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

// mapClockInfo maps the page, where the kernel has it. A device can do without.
func (c *context) mapClockInfo() {
	if c.out.clockInfoVersions&clockInfoV1 == 0 {
		return
	}
	if page, err := c.mem.Map(mmapClockInfo<<8*pageSize, pageSize, driver.MayRead); err == nil {
		c.clockInfo = page
	}
}

// clockTries bounds how often the kernel may be found writing.
const clockTries = 1000

// WallTime reads the page until it is whole.
func (c *context) WallTime(ticks uint64) (time.Time, error) {
	if c.clockInfo == nil {
		return time.Time{}, verbs.ErrUnsupported
	}
	info := abi.ViewAt[clockInfo](c.clockInfo, 0)
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

// coreClock is the page of the device that shows its clock.
type coreClock struct {
	mu     sync.Mutex
	page   []byte // guarded by mu: nil until it is first read
	closed bool   // guarded by mu
}

// hasCoreClock says whether the device shows its clock. Where pages of the host are larger than the
// device's the kernel shows nobody what lies behind.
func (c *context) hasCoreClock() bool {
	const clockBytes = 8
	return c.out.compMask&hasCoreClock != 0 && c.out.coreClockOffset <= pageSize-clockBytes && c.out.coreClockOffset%4 == 0
}

// Clock maps the page when it is first called.
func (c *context) Clock() (uint64, error) {
	if !c.hasCoreClock() {
		return 0, verbs.ErrUnsupported
	}
	c.coreClock.mu.Lock()
	defer c.coreClock.mu.Unlock()
	if c.coreClock.closed {
		return 0, verbs.ErrClosed
	}
	if c.coreClock.page == nil {
		page, err := c.mem.Map(mmapCoreClock<<8*pageSize, pageSize, driver.MayRead)
		if err != nil {
			return 0, err
		}
		c.coreClock.page = page
	}
	at := int(c.out.coreClockOffset)
	return readHalves(abi.ViewAt[atomic.Uint32](c.coreClock.page, at).Load, abi.ViewAt[atomic.Uint32](c.coreClock.page, at+4).Load), nil
}

// readHalves reads a counter in halves, which are in network byte order. If the lower one has gone
// round meanwhile, it is read again: that was not long ago.
func readHalves(upper, lower func() uint32) uint64 {
	high, low := upper(), lower()
	if again := upper(); again != high {
		high, low = again, lower()
	}
	return uint64(bits.ReverseBytes32(high))<<32 | uint64(bits.ReverseBytes32(low))
}

func (n *coreClock) close(mem driver.Memory) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	if n.page != nil {
		mem.Unmap(n.page)
		n.page = nil
	}
}
