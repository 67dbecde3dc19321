//go:build amd64 || arm64

package ibverbs

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
)

// eventQueue holds the asynchronous events of a device until NextEvent takes
// them. A goroutine has the library read them, so that the removal of the device is seen
// whether or not the program asks for events, and that each event is acknowledged: the
// library does not destroy an object before.
type eventQueue struct {
	dev     *device
	file    *os.File // the descriptor of events, on the netpoller
	removal *rdmahost.RemovalWatch
	event   ibvAsyncEvent // for the goroutine
	events  chan verbs.DriverEvent
	done    chan struct{} // closed by close
	once    sync.Once
	running sync.WaitGroup
}

// eventBacklog bounds the events that wait for NextEvent. A program that
// never fetches them loses the newest.
const eventBacklog = 1024

func openEvents(d *device, fd int) (*eventQueue, error) {
	file, err := pollable(fd, "asynchronous events")
	if err != nil {
		return nil, err
	}
	q := &eventQueue{
		dev: d, file: file, removal: rdmahost.WatchRemoval(d.entry.Node),
		events: make(chan verbs.DriverEvent, eventBacklog), done: make(chan struct{}),
	}
	raw, err := file.SyscallConn()
	if err != nil {
		file.Close()
		return nil, err
	}
	q.running.Go(func() { q.read(raw) })
	if q.removal != nil {
		q.running.Go(func() {
			if q.removal.Wait() { // ends with the removal, or close
				d.lost()
			}
		})
	}
	return q, nil
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

// read takes events one by one. It ends with close, or when the device is gone.
func (q *eventQueue) read(raw syscall.RawConn) {
	for err := error(nil); err == nil; {
		// Ends with an event, removal or close.
		closed := raw.Read(func(uintptr) bool {
			err = status(q.dev.lib.getAsyncEvent, q.dev.context, uintptr(unsafe.Pointer(&q.event)))
			return !errors.Is(err, unix.EAGAIN)
		})
		if closed != nil {
			return
		}
		switch {
		case err == nil:
			q.take()
		case errors.Is(err, unix.EINTR):
			err = nil
		default:
			q.dev.lost()
		}
	}
}

// take translates the event. One about an object that is being destroyed is dropped.
// Nothing is waited for before it is acknowledged: who destroys an object waits for that.
func (q *eventQueue) take() {
	e := q.event
	about := q.dev.find(e.element)
	number(q.dev.lib.ackAsyncEvent, uintptr(unsafe.Pointer(&q.event)))
	ev := verbs.DriverEvent{Type: verbs.EventType(e.eventType)}
	switch ev.Type {
	case verbs.EventDeviceFatal:
		q.dev.lost()
		return
	case verbs.EventPortActive, verbs.EventPortErr, verbs.EventLIDChange, verbs.EventPKeyChange, verbs.EventSMChange,
		verbs.EventClientReregister, verbs.EventGIDChange, verbs.EventSpeedChange:
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
			if ev.Type == verbs.EventQPFatal || ev.Type == verbs.EventQPReqErr || ev.Type == verbs.EventQPAccessErr {
				o.failed.Store(true)
			}
		default:
			return
		}
	}
	q.raise(ev)
}

// raise queues an event.
func (q *eventQueue) raise(ev verbs.DriverEvent) {
	select { // never waits
	case q.events <- ev:
	default:
	}
}

func (q *eventQueue) next() (verbs.DriverEvent, error) {
	select { // what came before close is still there
	case ev := <-q.events:
		return ev, nil
	default:
	}
	select { // ends with an event or with close
	case ev := <-q.events:
		return ev, nil
	case <-q.done:
		return verbs.DriverEvent{}, verbs.ErrClosed
	}
}

// close ends next and the goroutines.
func (q *eventQueue) close() {
	q.once.Do(func() {
		close(q.done)
		q.file.Close()
		if q.removal != nil {
			q.removal.Close()
		}
		q.running.Wait() // ends: the descriptors that they read are closed
	})
}
