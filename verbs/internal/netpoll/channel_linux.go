package netpoll

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// ErrGone is the error of everything on a device that was removed.
var ErrGone = fmt.Errorf("%w: the device was removed", verbs.ErrClosed)

// Channel is the descriptor of a completion channel, for which goroutines wait.
type Channel struct {
	file *os.File // on the netpoller
	raw  syscall.RawConn
	read func(fd uintptr) bool
	gone *atomic.Bool

	deadline time.Time // what the netpoller was told last; only the waiter uses it

	woken   atomic.Bool // Wake was called, and no Wait has returned since
	stopped atomic.Bool // Stop was called
}

// Open takes over the file. read takes one event, and reports false if there is none.
// gone says that the device was removed; Wake is called after it is set.
func (ch *Channel) Open(file *os.File, gone *atomic.Bool, read func(fd uintptr) bool) (err error) {
	ch.file, ch.gone, ch.read = file, gone, read
	ch.raw, err = file.SyscallConn()
	return err
}

// Wait parks the goroutine until read has taken an event, which came says, until the
// deadline, Wake, Stop, or the removal of the device. It allocates nothing.
func (ch *Channel) Wait(deadline time.Time) (came bool, err error) {
	for {
		if deadline != ch.deadline {
			if err := ch.file.SetReadDeadline(deadline); err != nil {
				return false, verbs.ErrClosed
			}
			ch.deadline = deadline
		}
		if ch.woken.Swap(false) || ch.stopped.Load() || ch.gone.Load() {
			return false, ch.Err()
		}
		// Ends with an event, the deadline, Wake (which moves the deadline
		// into the past), Stop, or the removal of the device.
		err := ch.raw.Read(ch.read)
		switch {
		case err == nil:
			return true, nil
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return false, verbs.ErrClosed
		case ch.woken.Swap(false):
			ch.deadline = past
			return false, ch.Err()
		case !deadline.IsZero() && !time.Now().Before(deadline):
			return false, err
		}
		ch.deadline = past // set by a Wake that an earlier Wait has seen, or by Stop
	}
}

// past is no deadline that a caller has.
var past = time.Unix(1, 0)

// Err is what a wait returns that did not end with an event or the deadline.
func (ch *Channel) Err() error {
	switch {
	case ch.stopped.Load():
		return verbs.ErrClosed
	case ch.gone.Load():
		return ErrGone
	}
	return nil
}

// Wake ends the Wait that runs, or else the next.
func (ch *Channel) Wake() {
	ch.woken.Store(true)
	_ = ch.file.SetReadDeadline(past) // fails only once the file is closed, which ends Wait too
}

// Stop ends all waits. The file stays open until Close.
func (ch *Channel) Stop() {
	ch.stopped.Store(true)
	_ = ch.file.SetReadDeadline(past)
}

// Close closes the file.
func (ch *Channel) Close() { ch.file.Close() }
