package netpoll

import (
	"os"
	"sync"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
)

// Events holds the asynchronous events of a device until NextEvent takes them. A
// goroutine reads them, so that the removal of the device is seen whether or not the
// program asks for events.
type Events struct {
	file    *os.File               // the descriptor of events; nil until Open
	removal *rdmahost.RemovalWatch // nil until Open, and where it is not allowed
	events  chan verbs.DriverEvent
	done    chan struct{} // closed by Close
	once    sync.Once
	running sync.WaitGroup
}

// backlog bounds the events that wait for Next. A program that never fetches them
// loses the newest.
const backlog = 1024

// NewEvents returns an empty queue.
func NewEvents() *Events {
	return &Events{events: make(chan verbs.DriverEvent, backlog), done: make(chan struct{})}
}

// Open takes over the file of the events, of a device with that node in /dev.
func (q *Events) Open(file *os.File, node string) {
	q.file, q.removal = file, rdmahost.WatchRemoval(node)
}

// Start starts the goroutines, which end with Close: read, which reads the file, and one
// that calls lost when the device is removed.
func (q *Events) Start(read func(*os.File), lost func()) {
	q.running.Go(func() { read(q.file) })
	if q.removal != nil {
		q.running.Go(func() {
			if q.removal.Wait() { // ends with the removal, or Close
				lost()
			}
		})
	}
}

// Raise queues an event.
func (q *Events) Raise(ev verbs.DriverEvent) {
	select { // never waits
	case q.events <- ev:
	default:
	}
}

// Next waits for an event, or for Close.
func (q *Events) Next() (verbs.DriverEvent, error) {
	select { // what came before Close is still there
	case ev := <-q.events:
		return ev, nil
	default:
	}
	select { // ends with an event or with Close
	case ev := <-q.events:
		return ev, nil
	case <-q.done:
		return verbs.DriverEvent{}, verbs.ErrClosed
	}
}

// Close ends Next and the goroutines.
func (q *Events) Close() {
	q.once.Do(func() {
		close(q.done)
		q.file.Close()
		if q.removal != nil {
			q.removal.Close()
		}
		q.running.Wait() // ends: the descriptors that they read are closed
	})
}

// AboutPort reports whether an event is about a port, not about an object of the program.
func AboutPort(t verbs.EventType) bool {
	switch t {
	case verbs.EventPortActive, verbs.EventPortErr, verbs.EventLIDChange, verbs.EventPKeyChange, verbs.EventSMChange,
		verbs.EventClientReregister, verbs.EventGIDChange, verbs.EventSpeedChange:
		return true
	}
	return false
}

// EndsQP reports whether an event says that a QP is in ERR.
func EndsQP(t verbs.EventType) bool {
	return t == verbs.EventQPFatal || t == verbs.EventQPReqErr || t == verbs.EventQPAccessErr
}
