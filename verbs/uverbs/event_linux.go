package uverbs

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
)

// eventQueue holds the asynchronous events of a device until NextEvent takes
// them. A goroutine reads them from the kernel's descriptor, so that the
// removal of the device is seen whether or not the program asks for events.
type eventQueue struct {
	dev     *device
	file    *os.File               // the kernel's descriptor, on the netpoller; nil until open
	removal *rdmahost.RemovalWatch // nil until open, and where it is not allowed
	events  chan verbs.DriverEvent
	done    chan struct{} // closed by close
	once    sync.Once
	running sync.WaitGroup
}

// eventBacklog bounds the events that wait for NextEvent. A program that
// never fetches them loses the newest.
const eventBacklog = 1024

func newEvents(d *device) *eventQueue {
	return &eventQueue{dev: d, events: make(chan verbs.DriverEvent, eventBacklog), done: make(chan struct{})}
}

// open takes over the kernel's descriptor, also if it fails.
func (q *eventQueue) open(fd int) error {
	file, err := pollable(fd, "asynchronous events")
	if err != nil {
		return err
	}
	q.file, q.removal = file, rdmahost.WatchRemoval(q.dev.entry.Node)
	return nil
}

// start starts the goroutines, which end with close. The queue is open.
func (q *eventQueue) start() {
	q.running.Go(q.read)
	if q.removal != nil {
		q.running.Go(func() {
			if q.removal.Wait() {
				q.dev.lost()
			}
		})
	}
}

// pollable makes a file on Go's netpoller of a descriptor of the kernel.
func pollable(fd int, name string) (*os.File, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("make descriptor of %s nonblocking: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// read takes events from the kernel, one with each call. It ends with close,
// or when the device is gone.
func (q *eventQueue) read() {
	buf := make([]byte, abi.SizeOf[abi.AsyncEventDesc]())
	for {
		n, err := q.file.Read(buf) // ends with an event, removal or close
		switch {
		case errors.Is(err, unix.EIO):
			q.dev.lost()
			return
		case err != nil:
			return
		case n == len(buf):
			q.take(*abi.ViewAt[abi.AsyncEventDesc](buf, 0))
		}
	}
}

// take translates an event. Objects are named by ids, and one that is gone by
// now has no event any more.
func (q *eventQueue) take(e abi.AsyncEventDesc) {
	ev := verbs.DriverEvent{Type: verbs.EventType(e.EventType)}
	switch ev.Type {
	case verbs.EventDeviceFatal:
		q.dev.lost()
		return
	case verbs.EventPortActive, verbs.EventPortErr, verbs.EventLIDChange, verbs.EventPKeyChange, verbs.EventSMChange,
		verbs.EventClientReregister, verbs.EventGIDChange, verbs.EventSpeedChange:
		ev.Port = uint8(e.Element)
	default:
		switch o := q.dev.find(e.Element).(type) {
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
			if ev.Type == verbs.EventQPFatal || ev.Type == verbs.EventQPReqErr || ev.Type == verbs.EventQPAccessErr {
				o.failedByKernel()
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
