//go:build amd64 || arm64

package frame

import (
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// A MessageFile is an open device node whose commands all come by write(2), and which has a
// queue of events that poll tells of: that of rdma_cm. Its calls come one at a time.
type MessageFile interface {
	// Write carries out what the program has written, and returns its errno. If that is
	// [NotReady] the program waits, unless it does not want to, and the message comes again
	// when there is an event.
	Write(*Message) unix.Errno
	// Close is called when the process that opened it has closed its descriptor or has ended.
	Close()
}

// NotReady is no errno: a message has to wait for an event.
const NotReady = unix.Errno(1 << 20)

// A Message is what a program has written. Its memory is the frame's.
type Message struct {
	Bytes   []byte
	process *Process
	program *Program
	id      uint64 // of the notification
	value   int64
}

// Process returns the process whose message it is.
func (m *Message) Process() *Process { return m.process }

// File returns the open file of this kind that has a number in the process, or nil.
func (m *Message) File(number int) MessageFile {
	m.program.mu.Lock()
	f := m.program.files[descriptor{m.process.pid, number}]
	m.program.mu.Unlock()
	if f == nil || !f.owner.runs(f.owner.pid) { // its owner's number may be another's now
		return nil
	}
	return f.messages
}

// An EventCount is how many events a file has for its program. Its methods are safe for
// concurrent use.
type EventCount struct {
	mu     sync.Mutex
	fd     int // an eventfd, which the program has too; guarded by mu
	closed bool
	file   *openFile
}

func newEventCount(flags int) (*EventCount, error) {
	eventFlags := unix.EFD_SEMAPHORE | unix.EFD_CLOEXEC
	if flags&unix.O_NONBLOCK != 0 {
		eventFlags |= unix.EFD_NONBLOCK
	}
	fd, err := unix.Eventfd(0, eventFlags)
	return &EventCount{fd: fd}, err
}

// Add counts an event that has come, and lets those go on that wait for it.
func (c *EventCount) Add() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	_, _ = unix.Write(c.fd, le.AppendUint64(nil, 1)) // it never is full
	go c.file.retry()
}

// Take counts an event that the program has got, or that is dropped. There must be one.
func (c *EventCount) Take() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		_, _ = unix.Read(c.fd, make([]byte, 8))
	}
}

// waits says whether the program wants to wait: the flag is the open file's, which both
// sides share.
func (c *EventCount) waits() bool {
	flags, err := unix.FcntlInt(uintptr(c.fd), unix.F_GETFL, 0)
	return err == nil && flags&unix.O_NONBLOCK == 0
}

func (c *EventCount) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	_ = unix.Close(c.fd)
}

func (p *Program) message(n *notification, f *openFile) (int64, unix.Errno, outcome) {
	const most = 4096
	m := &Message{Bytes: make([]byte, min(n.args[2], most)), process: f.owner, program: p, id: n.id, value: int64(n.args[2])}
	if f.owner.Read(n.args[1], m.Bytes) != nil {
		return 0, unix.EFAULT, answered // core/ucma.c, ucma_write
	}
	errno := f.use(func() unix.Errno {
		errno := f.messages.Write(m)
		if errno == NotReady && f.count.waits() {
			f.waiting = append(f.waiting, m)
		} else if errno == NotReady {
			errno = unix.EAGAIN // core/ucma.c, ucma_get_event
		}
		return errno
	})
	if len(m.Bytes) >= 4 && errno != unix.EAGAIN && errno != NotReady {
		p.log(f, "rdma_cm command %d: %s", le.Uint32(m.Bytes), errnoName(errno))
	}
	if errno == NotReady {
		return 0, 0, later
	}
	return m.value, errno, answered
}

// retry lets messages go on that wait for an event.
func (f *openFile) retry() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	f.waiting = slices.DeleteFunc(f.waiting, func(m *Message) bool {
		if !m.program.waits(m.id) {
			return true // a signal has ended the call
		}
		errno := f.messages.Write(m)
		if errno == NotReady {
			return false
		}
		m.program.answer(m.id, m.value, errno)
		return true
	})
}
