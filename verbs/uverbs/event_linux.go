package uverbs

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/internal/netpoll"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
)

// pollable makes a file on Go's netpoller of a descriptor of the kernel.
func pollable(fd int, name string) (*os.File, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("make descriptor of %s nonblocking: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// readEvents takes events from the kernel, one with each call. It ends when the file is
// closed, or the device is gone.
func (d *device) readEvents(file *os.File) {
	buf := make([]byte, abi.SizeOf[abi.AsyncEventDesc]())
	for {
		n, err := file.Read(buf) // ends with an event, removal or close
		switch {
		case errors.Is(err, unix.EIO):
			d.lost()
			return
		case err != nil:
			return
		case n == len(buf):
			d.takeEvent(*abi.ViewAt[abi.AsyncEventDesc](buf, 0))
		}
	}
}

// takeEvent translates an event. Objects are named by ids, and one that is gone by
// now has no event any more.
func (d *device) takeEvent(e abi.AsyncEventDesc) {
	ev := verbs.DriverEvent{Type: verbs.EventType(e.EventType)}
	switch {
	case ev.Type == verbs.EventDeviceFatal:
		d.lost()
		return
	case netpoll.AboutPort(ev.Type):
		ev.Port = uint8(e.Element)
	default:
		switch o := d.find(e.Element).(type) {
		case *cq:
			ev.CQ = o
			if ev.Type == verbs.EventCQErr {
				o.overrun()
			}
		case *srq:
			ev.SRQ = o
			if ev.Type == verbs.EventSRQLimitReached {
				o.reached.Store(true)
			}
		case *qp:
			o.life.RLock() // ends with the command that makes it, or destroys it
			gone := o.gone
			ev.QPN = o.num
			o.life.RUnlock()
			if gone {
				return
			}
			if netpoll.EndsQP(ev.Type) {
				o.failedByEvent()
			}
		case *target:
			num, ok := o.number()
			if !ok {
				return
			}
			ev.QPN = num
		default:
			return
		}
	}
	d.events.Raise(ev)
}
