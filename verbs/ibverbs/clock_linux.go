//go:build amd64 || arm64

package ibverbs

import (
	"errors"
	"fmt"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// clock tells when something was by the clock of the host. The library does it for completions
// alone, so that other times are counted from that of a completion, which was seen not long ago.
type clock struct {
	hz, mask uint64 // as in verbs.DeviceAttr; 0 if the library does not tell

	mu    sync.Mutex
	ticks uint64    // guarded by mu: the time of the completion by the clock of the device
	wall  time.Time // guarded by mu: the same by that of the host, zero if there was none
}

// seen is called with a completion that was polled, and its time in nanoseconds.
func (c *clock) seen(ticks, wall uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ticks, c.wall = ticks, time.Unix(0, int64(wall))
}

func (c *clock) at(ticks uint64) (time.Time, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wall.IsZero() {
		return time.Time{}, fmt.Errorf("%w: no completion with a time has been polled", verbs.ErrInvalid)
	}
	ticks = (ticks - c.ticks) & c.mask
	if ticks <= c.mask/2 {
		seconds, rest := c.split(ticks)
		return time.Unix(c.wall.Unix()+seconds, int64(c.wall.Nanosecond())+rest), nil
	}
	// The upper half are ticks of the past.
	seconds, rest := c.split(-ticks & c.mask)
	return time.Unix(c.wall.Unix()-seconds, int64(c.wall.Nanosecond())-rest), nil
}

// split makes seconds and nanoseconds of ticks.
func (c *clock) split(ticks uint64) (seconds, rest int64) {
	return int64(ticks / c.hz), int64(ticks % c.hz * uint64(time.Second) / c.hz)
}

// WallTime counts from the last completion that had a time.
func (d *device) WallTime(ticks uint64) (at time.Time, err error) {
	err = d.during(func() (err error) {
		at, err = d.clock.at(ticks)
		return err
	})
	return at, err
}

// tellsWallTime finds out whether the library tells what times of completions are by
// the clock of the host.
func (d *device) tellsWallTime() bool {
	return d.during(func() error {
		in := &ibvCQInitAttrEx{cqe: 1, wcFlags: wcStandard | wcWithTimestamp | wcWithWallTime}
		cq, err := handle(d.extension.createCQEx, d.context, uintptr(unsafe.Pointer(in)))
		if err != nil {
			return err
		}
		return status(d.lib.destroyCQ, cq)
	}) == nil
}

// Clock asks the driver of the library, which reads a page of the device. The kernel replaces that of a
// device that was removed with zeros, and one that was pulled out answers with all ones until then.
func (d *device) Clock() (uint64, error) {
	ticks, err := d.readClock()
	switch {
	case err == nil && ticks == 1<<64-1:
		err = errGone
	case err == nil && ticks == 0:
		err = d.seen(d.during(d.answers))
	}
	if err != nil {
		return 0, err
	}
	return ticks, nil
}

// answers is the kernel's answer to a question that it always answers while there is a device. It is
// called within during.
func (d *device) answers() error {
	return status(d.lib.queryDevice, d.context, uintptr(unsafe.Pointer(new(ibvDeviceAttr))))
}

// seen returns err, or that the device is gone if it says so, and then ends what waits for it.
func (d *device) seen(err error) error {
	if errors.Is(err, unix.EIO) {
		d.lost()
		return errGone
	}
	return err
}

// readClock is ibv_query_rt_values_ex, whose drivers give ticks for nanoseconds.
func (d *device) readClock() (ticks uint64, err error) {
	err = d.during(func() error {
		switch {
		case d.extension.queryRTValues == 0:
			return verbs.ErrUnsupported
		case d.gone.Load():
			return errGone
		}
		values := &ibvValuesEx{compMask: valuesRawClock}
		if err := status(d.extension.queryRTValues, d.context, uintptr(unsafe.Pointer(values))); err != nil {
			return failed("ibv_query_rt_values_ex", err)
		}
		if values.compMask&valuesRawClock == 0 {
			return verbs.ErrUnsupported
		}
		ticks = values.ticks
		return nil
	})
	return ticks, err
}
