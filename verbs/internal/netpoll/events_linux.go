package netpoll

import (
	"os"
	"sync"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/internal/eventqueue"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
)

// Events holds the asynchronous events of a device until NextEvent takes them. A
// goroutine reads them, so that the removal of the device is seen whether or not the
// program asks for events.
type Events struct {
	file    *os.File               // the descriptor of events; nil until Open
	removal *rdmahost.RemovalWatch // nil until Open, and where it is not allowed
	waiting eventqueue.Queue
	once    sync.Once
	running sync.WaitGroup
}

// NewEvents returns an empty queue.
func NewEvents() *Events { return new(Events) }

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

// Raise queues an event. A program that never fetches them loses the newest.
func (q *Events) Raise(ev verbs.DriverEvent) { _ = q.waiting.Raise(ev) }

// Next waits for an event, or for Close. What came before Close is still there.
func (q *Events) Next() (verbs.DriverEvent, error) { return q.waiting.Next() }

// Close ends Next and the goroutines.
func (q *Events) Close() {
	q.once.Do(func() {
		q.waiting.Close()
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
