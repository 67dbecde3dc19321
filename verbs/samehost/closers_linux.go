package samehost

import (
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// What may take its time to close is closed here: connections with something
// unread, descriptors that are not what they should be, listening sockets. Few
// threads do it. The usual trick, a TCP socket that lingers, waits in a way that a
// signal ends, and gets one after a millisecond: SIGURG, which Go's runtime sends to
// its threads at any time, and programs ignore. What waits in spite of signals (a
// file of a FUSE file system that does not answer) holds its thread; when all
// threads are held and enough is waiting, nothing more is accepted until one goes on.
const (
	maxClosers     = 16
	maxWaiting     = 256
	interruptAfter = time.Millisecond
	closeWithin    = time.Second // how long the end of a listener waits for its close
)

// closers closes things on threads of their own.
type closers struct {
	mu      sync.Mutex
	queue   []io.Closer   // guarded by mu
	running int           // guarded by mu: threads
	taken   chan struct{} // guarded by mu: closed, and made anew, when something was taken from a full queue
}

var waiting = closers{taken: make(chan struct{})}

// CloseReceived closes descriptors that a peer has sent, or sockets to which it may have sent some,
// and does not wait for it.
func CloseReceived(fds ...int) {
	for _, fd := range fds {
		if fd >= 0 {
			waiting.add(received(fd))
		}
	}
}

// received is a descriptor that a peer has sent. It is no os.File: that would be given
// to the netpoller if it does not block, whose calls ask the file whether it is ready,
// and a file of a FUSE file system may leave them without an answer.
type received int

func (fd received) Close() error { return os.NewSyscallError("close", unix.Close(int(fd))) }

func (q *closers) add(c io.Closer) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.queue = append(q.queue, c)
	if q.running < maxClosers {
		q.running++
		go q.run()
	}
}

func (q *closers) full() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.queue) >= maxWaiting
}

// room returns what is closed when q is full no more, nil if it is not.
func (q *closers) room() <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.queue) < maxWaiting {
		return nil
	}
	return q.taken
}

func (q *closers) next() io.Closer {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.queue) == 0 {
		q.running--
		return nil
	}
	if len(q.queue) == maxWaiting {
		close(q.taken)
		q.taken = make(chan struct{})
	}
	c := q.queue[0]
	q.queue[0] = nil
	q.queue = q.queue[1:]
	return c
}

// run closes until nothing is left.
func (q *closers) run() {
	for c := q.next(); c != nil; c = q.next() {
		closeInterrupted(c)
	}
}

// closeInterrupted closes c, and ends what waits at its last close.
func closeInterrupted(c io.Closer) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pid, thread := unix.Getpid(), unix.Gettid()
	var over atomic.Bool
	var interrupt func()
	interrupt = func() {
		if !over.Load() {
			unix.Tgkill(pid, thread, unix.SIGURG)
			time.AfterFunc(interruptAfter, interrupt)
		}
	}
	defer time.AfterFunc(interruptAfter, interrupt).Stop()
	c.Close()
	over.Store(true)
}
