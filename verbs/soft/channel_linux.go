package soft

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"golang.org/x/sys/unix"
)

// channel is a completion channel: an eventfd that peers hold a copy of and
// write to when they find a CQ of ours armed.
//
// Whoever waits in WaitThread and serves one QP only sleeps in a futex on the
// arm word of that QP instead, which costs less on both sides. The bit
// armFutex in the word tells the peer. Events of our own always go through
// signal, which ends either kind of sleep.
type channel struct {
	dev *device

	file *os.File // the eventfd, on the netpoller
	raw  syscall.RawConn
	read func(fd uintptr) bool // made once, so that Wait does not allocate

	// deadline is what the netpoller was told last; only the waiter uses it.
	deadline time.Time
	pfd      unix.PollFd
	timeout  unix.Timespec

	// signaled: signal has written to the eventfd since it was read.
	signaled atomic.Bool

	mu       sync.Mutex
	fd       int                   // guarded by mu: a descriptor of the same eventfd for direct calls, -1 when closed
	closed   bool                  // guarded by mu
	waiters  int                   // guarded by mu: WaitThread calls that use fd
	inbounds map[*inbound]struct{} // guarded by mu
	sleeper  *inbound              // guarded by mu: on whose word WaitThread sleeps
	woken    bool                  // guarded by mu: signal was called and no WaitThread has seen it
}

func (d *device) CreateCompChannel() (verbs.CompChannelDriver, error) {
	fd, err := d.eventfd()
	if err != nil {
		return nil, err
	}
	own, err := dupFD(fd)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	ch := &channel{dev: d, fd: own, file: os.NewFile(uintptr(fd), "completion channel"), inbounds: make(map[*inbound]struct{})}
	ch.read = func(fd uintptr) bool {
		ch.signaled.Store(false) // before the event itself, so that none is missed
		return drainEventfd(int(fd))
	}
	if ch.raw, err = ch.file.SyscallConn(); err != nil {
		closeFDs(own)
		ch.file.Close()
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.channels == nil {
		closeFDs(own)
		ch.file.Close()
		return nil, verbs.ErrClosed
	}
	d.channels[ch] = struct{}{}
	return ch, nil
}

// Wait parks the goroutine on the netpoller.
func (ch *channel) Wait(deadline time.Time) error {
	if deadline != ch.deadline {
		if err := ch.file.SetReadDeadline(deadline); err != nil {
			return ch.closedError(err)
		}
		ch.deadline = deadline
	}
	// Ends with a peer's or our own bell, the deadline, Wake or Close.
	return ch.closedError(ch.raw.Read(ch.read))
}

func (ch *channel) closedError(err error) error {
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	// What remains is a closed descriptor, for which os.File and its raw
	// connection have different errors.
	return verbs.ErrClosed
}

// WaitThread blocks the thread.
func (ch *channel) WaitThread(deadline time.Time) error {
	fd, in, word := ch.enter()
	if fd < 0 {
		return verbs.ErrClosed
	}
	defer ch.leave()
	if in == nil && drainEventfd(fd) {
		return nil
	}
	timeout, ok := ch.timeLeft(deadline)
	if !ok {
		return os.ErrDeadlineExceeded
	}
	if in == nil {
		ch.pfd = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
		// Ends with a bell, the deadline, Wake or Close (both write to fd).
		pollReadable(&ch.pfd, timeout)
		if drainEventfd(fd) {
			return nil
		}
		return expired(deadline)
	}
	// Ends when the peer takes armArmed away, or signal armFutex; with the
	// deadline, and with a signal of the runtime.
	futexWait(in.armWord(), word, timeout)
	if in.seg.hdr.arm.Load()&armArmed == 0 || drainEventfd(fd) {
		return nil
	}
	return expired(deadline)
}

func (ch *channel) timeLeft(deadline time.Time) (*unix.Timespec, bool) {
	if deadline.IsZero() {
		return nil, true
	}
	left := time.Until(deadline)
	ch.timeout = unix.NsecToTimespec(int64(left))
	return &ch.timeout, left > 0
}

// expired is the error of a wait that ended without an event.
func expired(deadline time.Time) error {
	if !deadline.IsZero() && !time.Now().Before(deadline) {
		return os.ErrDeadlineExceeded
	}
	return nil
}

// enter begins a WaitThread. If the only QP of the channel is armed it says
// in its word that a futex is the bell now, and returns the QP and the word.
func (ch *channel) enter() (int, *inbound, uint32) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.closed {
		return -1, nil, 0
	}
	ch.waiters++
	if len(ch.inbounds) != 1 || ch.waiters != 1 || ch.woken {
		ch.woken = false // the eventfd tells
		return ch.fd, nil, 0
	}
	// A peer that has rung the eventfd has taken armArmed away, so that there
	// is no event to look for if it is set, and a system call is saved.
	for in := range ch.inbounds {
		w := in.seg.hdr.arm.Load()
		if w&armArmed != 0 && in.seg.hdr.arm.CompareAndSwap(w, w|armFutex) {
			ch.sleeper = in
			return ch.fd, in, w | armFutex
		}
	}
	return ch.fd, nil, 0
}

func (ch *channel) leave() {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.eventfdAgain()
	if ch.waiters--; ch.waiters == 0 && ch.closed {
		closeFDs(ch.fd)
		ch.fd = -1
	}
}

// wakeSleeper ends a futex wait. It changes the word, so that one who is
// about to sleep does not.
func (ch *channel) wakeSleeper() {
	if in := ch.eventfdAgain(); in != nil {
		futexWake(in.armWord())
	}
}

// eventfdAgain makes the eventfd the bell again and returns the QP on
// whose word somebody sleeps, if so.
func (ch *channel) eventfdAgain() *inbound {
	in := ch.sleeper
	if in == nil {
		return nil
	}
	ch.sleeper = nil
	arm := &in.seg.hdr.arm
	for range casTries {
		w := arm.Load()
		if w&armFutex == 0 || arm.CompareAndSwap(w, w&^armFutex) {
			break
		}
	}
	return in
}

// signal makes the channel readable and ends a futex wait.
func (ch *channel) signal() {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.closed {
		return
	}
	ch.signaled.Store(true)
	ringOwnEventfd(ch.fd)
	ch.woken = true
	ch.wakeSleeper()
}

func (ch *channel) Wake() { ch.signal() }

// bell returns a new descriptor of the eventfd, for a peer.
func (ch *channel) bell() (int, error) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.closed {
		return -1, verbs.ErrClosed
	}
	return dupFD(ch.fd)
}

func (ch *channel) attach(in *inbound) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.inbounds[in] = struct{}{}
	// A second QP cannot ring a futex on the word of the first.
	ch.wakeSleeper()
}

func (ch *channel) detach(in *inbound) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	delete(ch.inbounds, in)
	if ch.sleeper == in {
		ch.wakeSleeper()
	}
}

func (ch *channel) Close() error {
	ch.mu.Lock()
	if ch.closed {
		ch.mu.Unlock()
		return verbs.ErrClosed
	}
	ch.signaled.Store(true)
	ringOwnEventfd(ch.fd)
	ch.wakeSleeper()
	ch.closed = true
	if ch.waiters == 0 {
		closeFDs(ch.fd)
		ch.fd = -1
	}
	ch.mu.Unlock()
	ch.dev.mu.Lock()
	delete(ch.dev.channels, ch)
	ch.dev.mu.Unlock()
	return ch.file.Close()
}
