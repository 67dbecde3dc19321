package samehost

import (
	"cmp"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// A process may have many listening sockets that hardly anybody ever connects to, and many
// connections on which hardly anything is ever said. One goroutine waits for all of them:
// for an epoll descriptor, on Go's network poller.
// What comes is dealt with on a goroutine that ends with it. A socket is asked about
// once (EPOLLONESHOT), and again when nothing is left in its queue.
var watching watcher

type watcher struct {
	mu      sync.Mutex
	epoll   *os.File         // nil if nothing is watched; guarded by mu
	raw     syscall.RawConn  // of epoll; guarded by mu
	ended   chan struct{}    // closed when the goroutine has ended; guarded by mu
	watches map[int32]*watch // by number; guarded by mu
	last    int32            // guarded by mu
}

// watch is a socket that is watched.
type watch struct {
	number int32
	socket syscall.RawConn
	take   func() // takes all that is there
}

// add watches a socket, nonblocking: take is called on a goroutine of its own when
// something is there, and not again before it has returned. It must leave nothing.
func (w *watcher) add(socket syscall.RawConn, take func()) (*watch, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.epoll == nil {
		if err := w.begin(); err != nil {
			return nil, err
		}
	}
	for w.last++; w.watches[w.last] != nil; {
		w.last++
	}
	one := &watch{number: w.last, socket: socket, take: take}
	w.watches[one.number] = one
	if err := w.control(unix.EPOLL_CTL_ADD, one); err != nil {
		delete(w.watches, one.number)
		w.endIfIdle()
		return nil, err
	}
	return one, nil
}

// remove ends a watch. What runs of it goes on. After the last the goroutine has
// ended.
func (w *watcher) remove(one *watch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.control(unix.EPOLL_CTL_DEL, one) // it fails if the socket is closed already
	delete(w.watches, one.number)
	w.endIfIdle()
}

// begin starts the goroutine. mu is held.
func (w *watcher) begin() error {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // for os.NewFile to give it to the poller
		unix.Close(fd)
		return os.NewSyscallError("fcntl", err)
	}
	file := os.NewFile(uintptr(fd), "epoll")
	raw, err := file.SyscallConn()
	if err != nil {
		file.Close()
		return err
	}
	w.epoll, w.raw, w.ended = file, raw, make(chan struct{})
	w.watches = make(map[int32]*watch)
	go w.run(raw, w.ended)
	return nil
}

// endIfIdle ends the goroutine when nothing is watched. mu is held, but not while it
// waits: the goroutine needs it.
func (w *watcher) endIfIdle() {
	if len(w.watches) > 0 {
		return
	}
	epoll, ended := w.epoll, w.ended
	w.epoll, w.raw = nil, nil
	w.mu.Unlock()
	epoll.Close()
	<-ended // ended by the closed descriptor
	w.mu.Lock()
}

// control changes what the kernel watches. mu is held.
func (w *watcher) control(op int, one *watch) error {
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: one.number}
	var err, closed error
	gone := w.raw.Control(func(epfd uintptr) {
		closed = one.socket.Control(func(fd uintptr) {
			err = os.NewSyscallError("epoll_ctl", unix.EpollCtl(int(epfd), op, int(fd), &event))
		})
	})
	return cmp.Or(gone, closed, err)
}

// run starts what there is to do, until the descriptor is closed.
func (w *watcher) run(raw syscall.RawConn, ended chan struct{}) {
	defer close(ended)
	var events [10]unix.EpollEvent
	raw.Read(func(epfd uintptr) bool { // ended by a socket, or endIfIdle
		for {
			n, err := unix.EpollWait(int(epfd), events[:], 0)
			if err == unix.EINTR {
				continue
			}
			if n <= 0 {
				return false
			}
			for i := range events[:n] {
				w.start(events[i].Fd)
			}
		}
	})
}

// start deals with what has come to one socket.
func (w *watcher) start(number int32) {
	w.mu.Lock()
	one := w.watches[number]
	w.mu.Unlock()
	if one == nil {
		return // removed meanwhile
	}
	go func() {
		one.take()
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.watches[number] == one {
			_ = w.control(unix.EPOLL_CTL_MOD, one) // it fails if the socket is closed already
		}
	}()
}
