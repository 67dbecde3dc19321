//go:build amd64 || arm64

package ibverbs

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/internal/netpoll"
)

// eventReader has the library read the events of a device, which acknowledges each: the
// library does not destroy an object before.
type eventReader struct {
	dev   *device
	event ibvAsyncEvent
}

// openEvents begins to read events.
func (d *device) openEvents(fd int) error {
	file, err := pollable(fd, "asynchronous events")
	if err != nil {
		return err
	}
	raw, err := file.SyscallConn()
	if err != nil {
		file.Close()
		return err
	}
	d.events = netpoll.NewEvents()
	d.events.Open(file, d.entry.Node)
	r := &eventReader{dev: d}
	d.events.Start(func(*os.File) { r.read(raw) }, d.lost)
	return nil
}

// pollable puts a descriptor of the library on Go's netpoller. The library reads from its
// own and closes it, so the poller has another one for the same file. That is not
// blocking from now on.
func pollable(fd int, name string) (*os.File, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("make descriptor of %s nonblocking: %w", name, err)
	}
	other, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicate descriptor of %s: %w", name, err)
	}
	return os.NewFile(uintptr(other), name), nil
}

// read takes events one by one. It ends when the file is closed, or the device is gone.
func (r *eventReader) read(raw syscall.RawConn) {
	for err := error(nil); err == nil; {
		// Ends with an event, removal or the close of the file.
		closed := raw.Read(func(uintptr) bool {
			err = status(r.dev.lib.getAsyncEvent, r.dev.context, uintptr(unsafe.Pointer(&r.event)))
			return !errors.Is(err, unix.EAGAIN)
		})
		if closed != nil {
			return
		}
		switch {
		case err == nil:
			r.take()
		case errors.Is(err, unix.EINTR):
			err = nil
		default:
			r.dev.lost()
		}
	}
}

// take translates the event. One about an object that is being destroyed is dropped.
// Nothing is waited for before it is acknowledged: who destroys an object waits for that.
func (r *eventReader) take() {
	e := r.event
	about := r.dev.find(e.element)
	number(r.dev.lib.ackAsyncEvent, uintptr(unsafe.Pointer(&r.event)))
	ev := verbs.DriverEvent{Type: verbs.EventType(e.eventType)}
	switch {
	case ev.Type == verbs.EventDeviceFatal:
		r.dev.lost()
		return
	case netpoll.AboutPort(ev.Type):
		ev.Port = uint8(e.element)
	default:
		switch o := about.(type) {
		case *cq:
			ev.CQ = o
			if ev.Type == verbs.EventCQErr {
				o.overrun()
			}
		case *srq:
			ev.SRQ = o
		case *qp:
			ev.QPN = o.num
			if netpoll.EndsQP(ev.Type) {
				o.failedByEvent()
			}
		case *target:
			ev.QPN = o.num
		default:
			return
		}
	}
	r.dev.events.Raise(ev)
}
