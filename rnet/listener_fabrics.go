package rnet

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/softcm"
)

// A listener has a listener on each fabric for as long as it is open. It may
// have to wait for one: with SO_REUSEPORT, or while an older process still has
// the port, TCP listeners share it, but the listeners of a fabric do not. The
// first has it, and when that closes the next who waits has it: the software HCA's listener
// is handed over (rcm/softcm/handover_linux.go), so that no dial finds nobody. So a server that
// replaces another gets all dials when the other one stops accepting, and is not
// left with TCP.

const (
	minListenPause = time.Millisecond
	maxListenPause = time.Second
	maxLinePause   = 64 * time.Millisecond // while the queue of whom we wait for is full
)

// fabricListener is the listener on one fabric, or waits for it. A goroutine works only when
// there is something to do: requests, or a wait for the address.
type fabricListener struct {
	l      *Listener
	fabric fabric
	at     netip.AddrPort
	cfg    rcm.ListenConfig
	// waits in line for the place; nil if nobody does; of who opens or serves
	next func(context.Context) (rcm.Listener, error)

	mu      sync.Mutex
	ln      rcm.Listener // nil while there is none; guarded by mu
	begun   time.Time    // when ln was had; guarded by mu
	working bool         // a goroutine works; guarded by mu
	again   bool         // something has come since it looked, or since ln was asked for; guarded by mu
}

func (l *Listener) newFabricListener(f fabric, at netip.AddrPort, cfg rcm.ListenConfig) *fabricListener {
	fl := &fabricListener{l: l, fabric: f, at: at, cfg: cfg}
	fl.cfg.Arrived = fl.arrived
	return fl
}

// open begins to serve the peers that come to ln, or if that is nil waits for a
// listener first. The listener is not closed. Whoever has the place may close as soon as
// open has returned, and hands it over to us.
func (fl *fabricListener) open(ln rcm.Listener) {
	if ln == nil {
		_ = fl.getInLine() // tried again by serve
	}
	fl.mu.Lock()
	defer fl.mu.Unlock()
	fl.ln, fl.begun = ln, time.Now()
	if ln == nil || fl.again {
		fl.work()
	}
}

// arrived is told that there is something to accept.
func (fl *fabricListener) arrived() {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	fl.again = true
	if fl.ln != nil && !fl.working {
		fl.work()
	}
}

// work starts a goroutine, unless the listener is closed. mu is held.
func (fl *fabricListener) work() {
	fl.l.mu.Lock()
	defer fl.l.mu.Unlock()
	if !fl.l.closed {
		fl.working = true
		fl.l.work.Go(fl.serve)
	}
}

// idle reports whether nothing is left to do, and then says so.
func (fl *fabricListener) idle() bool {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	if fl.again {
		fl.again = false
		return false
	}
	fl.working = false
	return true
}

// serve serves the peers that have come, if the listener is lost those who come to the
// next one that can be had.
func (fl *fabricListener) serve() {
	for {
		fl.mu.Lock()
		ln := fl.ln
		fl.mu.Unlock()
		if ln == nil {
			if ln = fl.await(); ln == nil {
				return
			}
			fl.mu.Lock()
			fl.ln, fl.begun = ln, time.Now()
			fl.mu.Unlock()
		}
		if fl.l.acceptFabric(fl.fabric.transport, ln) == nil {
			if fl.idle() {
				return
			}
			continue
		}
		fl.l.removeFabric(ln)
		ln.Close()
		fl.mu.Lock()
		fl.ln = nil
		begun := fl.begun
		fl.mu.Unlock()
		if time.Since(begun) < maxListenPause { // the next one may be lost as soon
			select { // ended by the clock or Close
			case <-time.After(maxListenPause):
			case <-fl.l.open.Done():
			}
		}
	}
}

// await waits until it can listen there. It returns nil if the listener was closed
// before, or nobody would find it.
func (fl *fabricListener) await() rcm.Listener {
	l := fl.l
	for pause := minListenPause; ; pause = min(2*pause, maxListenPause) {
		begun, inLine := time.Now(), fl.next != nil
		ln, err := fl.listenNext()
		if l.open.Err() != nil {
			if err == nil {
				handOn(ln)
			}
			return nil
		}
		if err == nil {
			l.set.Log.Debug("rnet: listen", "address", fl.at, "transport", fl.fabric.transport, "waited", true)
			if !l.addFabric(ln) {
				handOn(ln)
				return nil
			}
			return ln
		}
		if errors.Is(err, softcm.ErrNotReached) {
			return nil // or a stranger at its address would see us there for ever
		}
		switch {
		case inLine && time.Since(begun) > minListenPause:
			continue // the place went to somebody before us: now we wait for that one
		case time.Since(begun) > maxListenPause:
			pause = minListenPause // the last wait was long: begin anew
		case errors.Is(err, rcm.ErrBusy):
			pause = min(pause, maxLinePause) // we are not in line yet
		}
		select { // ended by the clock or Close
		case <-time.After(pause):
		case <-l.open.Done():
			return nil
		}
	}
}

// handOn closes a listener that was had when nobody wanted it any more. Another process may be
// in line for the place already.
func handOn(ln rcm.Listener) {
	if f, ok := ln.(interface{ HandOver() bool }); ok {
		f.HandOver()
	}
	ln.Close()
}

// line is a fabric where the place of a listener can be waited for, and is handed over.
type line interface {
	Await(netip.AddrPort, rcm.ListenConfig) (next func(context.Context) (rcm.Listener, error), err error)
}

// getInLine begins to wait for the place. It does not wait for anybody.
func (fl *fabricListener) getInLine() (err error) {
	if f, ok := fl.fabric.Fabric.(line); ok {
		fl.next, err = f.Await(fl.at, fl.cfg)
	}
	return err
}

// listenNext listens when those who waited before have listened.
func (fl *fabricListener) listenNext() (rcm.Listener, error) {
	if fl.next == nil {
		if err := fl.getInLine(); errors.Is(err, rcm.ErrBusy) {
			return nil, err
		} // otherwise the place is free meanwhile, or nobody can wait for it
	}
	if next := fl.next; next != nil {
		fl.next = nil
		return next(fl.l.open)
	}
	return fl.fabric.Listen(fl.at, fl.cfg)
}

// worthWaiting reports whether a listener on a fabric may be had later that
// cannot be had now.
func worthWaiting(err error) bool {
	return !errors.Is(err, rcm.ErrNoRoute) && !errors.Is(err, errors.ErrUnsupported) && !errors.Is(err, softcm.ErrNotReached)
}

// addFabric takes in a listener on a fabric, unless the listener is closed.
func (l *Listener) addFabric(ln rcm.Listener) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.fabrics = append(l.fabrics, ln)
	return true
}

func (l *Listener) removeFabric(ln rcm.Listener) {
	seen := ln.Stats()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fabrics = slices.DeleteFunc(slices.Clone(l.fabrics), func(one rcm.Listener) bool { return one == ln })
	l.lost.count(seen)
}

// onFabrics returns the listeners on fabrics that there are now.
func (l *Listener) onFabrics() []rcm.Listener {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.fabrics)
}
