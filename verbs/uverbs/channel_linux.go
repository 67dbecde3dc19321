package uverbs

import (
	"encoding/binary"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/internal/netpoll"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
)

// channel is a completion channel: a descriptor of the kernel from which one
// reads eight bytes for each CQ that was armed and has completed something.
// What they say is not looked at: whoever waits polls its CQs.
//
// A goroutine in Wait parks on the netpoller, and one in WaitThread in
// poll(2), both for the same descriptor. What one of them reads it has taken
// from the other, so it tells it: through the eventfd to WaitThread, and to Wait by
// the counter of events and as Wake does. The netpoller wakes nobody for an event that
// is gone when it looks.
type channel struct {
	dev   *device
	id    uint64
	waits netpoll.Channel // of the kernel's descriptor

	// seen is the count of events that Wait has returned for; only the waiter uses
	// it and readErr.
	seen    uint64
	readErr error

	events  atomic.Uint64 // events that were read
	waiting atomic.Bool   // Wait runs
	// numbered: there are CQs that have to know how many of their events were
	// read. Only then it is looked at whose an event is.
	numbered atomic.Bool

	threadMu sync.Mutex // one WaitThread at a time
	pfds     [2]unix.PollFd
	timeout  unix.Timespec

	mu       sync.Mutex
	fd       int  // guarded by mu: the kernel's descriptor, -1 once closed
	eventfd  int  // guarded by mu: eventfd that ends WaitThread, -1 once closed
	users    int  // guarded by mu: who uses fd and eventfd outside mu
	threads  int  // guarded by mu: WaitThread calls
	signaled bool // guarded by mu: eventfd was written and not read
	pending  bool // guarded by mu: Wake was called, and no WaitThread has returned since
	closed   bool // guarded by mu
}

func (d *device) CreateCompChannel() (verbs.CompChannelDriver, error) {
	var out abi.CreateCompChannelOut
	if err := d.command(abi.CmdCreateCompChannel, abi.BytesOf(&abi.ResponseOnly{}), abi.BytesOf(&out)); err != nil {
		return nil, err
	}
	file, err := pollable(int(int32(out.FD)), "completion channel")
	if err != nil {
		return nil, err
	}
	ch := &channel{dev: d, fd: int(int32(out.FD)), eventfd: -1}
	if err = ch.waits.Open(file, &d.gone, ch.readEvent); err == nil {
		ch.eventfd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	}
	if err == nil {
		ch.id, err = d.add(ch)
	}
	if err != nil {
		ch.abandon()
		return nil, err
	}
	return ch, nil
}

// readEvent takes one event, and reports false if there is none.
func (ch *channel) readEvent(fd uintptr) bool {
	ch.readErr = ch.takeEvent(int(fd))
	if ch.readErr == unix.EAGAIN {
		// Somebody else may have taken what the netpoller woke us for.
		return ch.events.Load() != ch.seen
	}
	return true
}

// takeEvent reads one event. The read never blocks, so the scheduler is not
// told of it: who tells it wakes its monitor thread whenever the process was
// idle before, as one that waits for events is, and that takes longer than all
// the rest.
func (ch *channel) takeEvent(fd int) error {
	var event abi.CompEventDesc
	for {
		_, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd),
			uintptr(unsafe.Pointer(&event)), unsafe.Sizeof(event))
		if errno == 0 {
			ch.events.Add(1)
			if ch.numbered.Load() {
				if c, ok := ch.dev.find(event.CQHandle).(*cq); ok && c.events != nil {
					c.events.Notified()
				}
			}
			return nil
		}
		if errno != unix.EINTR {
			return errno
		}
	}
}

// Wait parks the goroutine on the netpoller.
func (ch *channel) Wait(deadline time.Time) error {
	ch.waiting.Store(true) // before it looks at events
	came, err := ch.waits.Wait(deadline)
	ch.waiting.Store(false)
	if !came {
		return err
	}
	return ch.waited()
}

// waited ends a Wait for which an event came.
func (ch *channel) waited() error {
	ch.seen = ch.events.Load()
	if ch.readErr == unix.EIO {
		ch.dev.lost()
		return errGone
	}
	ch.mu.Lock()
	if ch.threads > 0 {
		ch.signal()
	}
	ch.mu.Unlock()
	return nil
}

// WaitThread blocks the thread.
func (ch *channel) WaitThread(deadline time.Time) error {
	ch.threadMu.Lock() // ends with the other WaitThread
	defer ch.threadMu.Unlock()
	fd, eventfd, woken, err := ch.enter()
	if err != nil {
		return err
	}
	defer ch.leave()
	if woken || ch.dev.gone.Load() {
		return ch.waits.Err()
	}
	switch err := ch.takeForThread(fd); err {
	case nil:
		return nil
	case unix.EIO:
		ch.dev.lost()
		return errGone
	}
	for {
		var timeout *unix.Timespec
		if !deadline.IsZero() {
			left := time.Until(deadline)
			if left <= 0 {
				return os.ErrDeadlineExceeded
			}
			ch.timeout = unix.NsecToTimespec(int64(left))
			timeout = &ch.timeout
		}
		ch.pfds = [2]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}, {Fd: int32(eventfd), Events: unix.POLLIN}}
		// Ends with an event, the deadline, or the eventfd: Wake, Close, removal of
		// the device, an event that Wait has taken. A signal, and the Go scheduler
		// sends some, is none of these.
		if n, err := unix.Ppoll(ch.pfds[:], timeout, nil); n == 0 || err == unix.EINTR {
			continue
		}
		if ch.pfds[0].Revents != 0 && ch.takeForThread(fd) == unix.EIO {
			ch.dev.lost()
		}
		return ch.waits.Err()
	}
}

// takeForThread is takeEvent of WaitThread.
func (ch *channel) takeForThread(fd int) error {
	err := ch.takeEvent(fd)
	if err == nil && ch.waiting.Load() {
		ch.waits.Wake()
	}
	return err
}

// enter begins a WaitThread.
func (ch *channel) enter() (fd, eventfd int, woken bool, err error) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.closed {
		return -1, -1, false, verbs.ErrClosed
	}
	ch.threads++
	ch.users++
	woken = ch.pending
	ch.pending = false
	return ch.fd, ch.eventfd, woken, nil
}

func (ch *channel) leave() {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.threads--
	ch.pending = false
	if ch.signaled {
		var count [8]byte
		_, _ = unix.Read(ch.eventfd, count[:]) // it was written, so it can be read
		ch.signaled = false
	}
	ch.unuse()
}

// signal ends a WaitThread. The caller holds mu.
func (ch *channel) signal() {
	if ch.signaled || ch.eventfd < 0 {
		return
	}
	ch.signaled = true
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	_, _ = unix.Write(ch.eventfd, one[:]) // an eventfd that was read takes it
}

// Wake ends the Wait and the WaitThread that run. Without one of them, it
// ends the next.
func (ch *channel) Wake() {
	ch.mu.Lock()
	if ch.closed {
		ch.mu.Unlock()
		return
	}
	if ch.threads > 0 {
		ch.signal()
	}
	ch.pending = true
	ch.mu.Unlock()
	ch.waits.Wake()
}

// hold returns the descriptor, which stays open until release.
func (ch *channel) hold() (fd int, release func(), err error) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.closed {
		return -1, nil, verbs.ErrClosed
	}
	ch.users++
	return ch.fd, func() {
		ch.mu.Lock()
		defer ch.mu.Unlock()
		ch.unuse()
	}, nil
}

// unuse closes what a Close has left to the last user. The caller holds mu.
func (ch *channel) unuse() {
	if ch.users--; ch.users == 0 && ch.closed {
		ch.closeFDs()
	}
}

func (ch *channel) closeFDs() {
	ch.waits.Close()
	if ch.eventfd >= 0 {
		unix.Close(ch.eventfd)
	}
	ch.fd, ch.eventfd = -1, -1
}

func (ch *channel) Close() error {
	if !ch.shut() {
		return verbs.ErrClosed
	}
	ch.dev.drop(ch.id)
	return nil
}

// shut ends all waits, and reports false if they were ended before.
func (ch *channel) shut() bool {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.closed {
		return false
	}
	ch.closed = true
	ch.waits.Stop()
	if ch.users > 0 { // the last of them closes the descriptors
		ch.signal()
		return true
	}
	ch.closeFDs()
	return true
}

func (ch *channel) abandon() { ch.shut() }
