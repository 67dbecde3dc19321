//go:build amd64 || arm64

package ibverbs

import (
	"errors"
	"os"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/internal/netpoll"
)

// channel is a completion channel. A goroutine in Wait parks on the netpoller, and then
// the library takes the event: some drivers count those of each CQ.
type channel struct {
	dev     *device
	address uintptr         // struct ibv_comp_channel
	waits   netpoll.Channel // of its descriptor
	readErr error           // only the waiter uses it

	mu     sync.Mutex
	cqs    int        // guarded by mu: how many there are of this channel
	closed bool       // guarded by mu
	freed  bool       // guarded by mu: the library has no channel any more
	taken  [2]uintptr // guarded by mu: the CQ of an event, and its cq_context
}

func (d *device) CreateCompChannel() (verbs.CompChannelDriver, error) {
	ch := &channel{dev: d}
	if err := d.during(ch.create); err != nil {
		return nil, err
	}
	return ch, nil
}

func (ch *channel) create() (err error) {
	d := ch.dev
	if ch.address, err = handle(d.lib.createCompChannel, d.context); err != nil {
		return failed("ibv_create_comp_channel", err)
	}
	c := view[ibvCompChannel](ch.address)
	if c.context != d.context || c.fd < 0 {
		err = unknownLayout("ibv_comp_channel")
	} else {
		var file *os.File
		if file, err = pollable(int(c.fd), "completion channel"); err == nil {
			err = ch.waits.Open(file, &d.gone, ch.readEvent)
		}
	}
	if err != nil {
		number(d.lib.destroyCompChannel, ch.address)
		return err
	}
	d.add(ch.address, ch)
	return nil
}

// readEvent takes one event, and reports false if there is none.
func (ch *channel) readEvent(uintptr) bool {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.closed {
		ch.readErr = verbs.ErrClosed
		return true
	}
	for {
		ch.readErr = status(ch.dev.lib.getCQEvent, ch.address, uintptr(unsafe.Pointer(&ch.taken[0])), uintptr(unsafe.Pointer(&ch.taken[1])))
		switch ch.readErr {
		case nil:
			about, _ := ch.dev.find(ch.taken[0]).(*cq)
			number(ch.dev.lib.ackCQ, ch.taken[0], 1) // who destroys the CQ waits for that
			if about != nil {
				about.events.Add(1)
			}
			return true
		case unix.EAGAIN:
			return false
		case unix.EINTR:
		default:
			return true
		}
	}
}

// Wait parks the goroutine on the netpoller.
func (ch *channel) Wait(deadline time.Time) error {
	came, err := ch.waits.Wait(deadline)
	if !came {
		return err
	}
	return ch.waited()
}

// waited ends a Wait that has read.
func (ch *channel) waited() error {
	switch {
	case ch.readErr == nil:
		return nil
	case errors.Is(ch.readErr, verbs.ErrClosed):
		return verbs.ErrClosed
	}
	ch.dev.lost() // nothing else ends a channel
	return errGone
}

// WaitThread is Wait: the library has no way to end a thread's wait but a signal.
func (ch *channel) WaitThread(deadline time.Time) error { return ch.Wait(deadline) }

// Wake ends the Wait that runs, or else the next.
func (ch *channel) Wake() { ch.waits.Wake() }

func (ch *channel) Close() error { return ch.dev.during(ch.destroy) }

func (ch *channel) rank() int { return rankChannel }

// destroy ends all waits. The library's channel goes when its last CQ is gone.
func (ch *channel) destroy() error {
	ch.mu.Lock()
	if ch.closed {
		ch.mu.Unlock()
		return verbs.ErrClosed
	}
	ch.closed = true
	ch.waits.Stop()
	ch.mu.Unlock()
	ch.waits.Close() // ends when nobody reads, which takes mu
	ch.mu.Lock()
	defer ch.mu.Unlock()
	return ch.free()
}

// free destroys the channel of the library if it is closed and nobody uses it. The caller
// holds mu.
func (ch *channel) free() error {
	if !ch.closed || ch.cqs > 0 || ch.freed {
		return nil
	}
	ch.freed = true
	ch.dev.drop(ch.address)
	return failed("ibv_destroy_comp_channel", status(ch.dev.lib.destroyCompChannel, ch.address))
}

// join is called before a CQ is made with the channel, and leave when it is gone.
func (ch *channel) join() error {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.closed {
		return verbs.ErrClosed
	}
	ch.cqs++
	return nil
}

func (ch *channel) leave() {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.cqs--
	_ = ch.free() // the caller of Close is gone
}
