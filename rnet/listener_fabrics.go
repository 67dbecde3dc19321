package rnet

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/seed-b9b531af/ramjet/rcm"
)

// A listener has a listener on each fabric for as long as it is open. It may
// have to wait for one: with SO_REUSEPORT, or while an older process still has
// the port, TCP listeners share it, but the listeners of a fabric do not. The
// first has it, and when that closes the next who waits has it. So a server that
// replaces another gets all dials when the other one stops accepting, and is not
// left with TCP.

const (
	minListenPause = time.Millisecond
	maxListenPause = time.Second
)

// stand is a place for a listener on a fabric. A goroutine works there only when
// there is something to do: requests, or a wait for the place.
type stand struct {
	l      *Listener
	fabric fabric
	at     netip.AddrPort
	cfg    rcm.ListenConfig

	mu      sync.Mutex
	fl      rcm.Listener // nil while there is none; guarded by mu
	begun   time.Time    // when fl was had; guarded by mu
	working bool         // a goroutine works; guarded by mu
	again   bool         // something has come since it looked, or since fl was asked for; guarded by mu
}

func (l *Listener) newStand(f fabric, at netip.AddrPort, cfg rcm.ListenConfig) *stand {
	st := &stand{l: l, fabric: f, at: at, cfg: cfg}
	st.cfg.Arrived = st.arrived
	return st
}

// open begins to serve the peers that come to fl, or if that is nil waits for a
// listener first. The listener is not closed.
func (st *stand) open(fl rcm.Listener) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.fl, st.begun = fl, time.Now()
	if fl == nil || st.again {
		st.work()
	}
}

// arrived is told that there is something to accept.
func (st *stand) arrived() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.again = true
	if st.fl != nil && !st.working {
		st.work()
	}
}

// work starts a goroutine, unless the listener is closed. mu is held.
func (st *stand) work() {
	st.l.mu.Lock()
	defer st.l.mu.Unlock()
	if !st.l.closed {
		st.working = true
		st.l.work.Go(st.serve)
	}
}

// idle reports whether nothing is left to do, and then says so.
func (st *stand) idle() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.again {
		st.again = false
		return false
	}
	st.working = false
	return true
}

// serve serves the peers that have come, if the listener is lost those who come to the
// next one that can be had.
func (st *stand) serve() {
	for {
		st.mu.Lock()
		fl := st.fl
		st.mu.Unlock()
		if fl == nil {
			if fl = st.await(); fl == nil {
				return
			}
			st.mu.Lock()
			st.fl, st.begun = fl, time.Now()
			st.mu.Unlock()
		}
		if st.l.acceptFabric(st.fabric.transport, fl) == nil {
			if st.idle() {
				return
			}
			continue
		}
		st.l.removeFabric(fl)
		fl.Close()
		st.mu.Lock()
		st.fl = nil
		begun := st.begun
		st.mu.Unlock()
		if time.Since(begun) < maxListenPause { // the next one may be lost as soon
			select { // ended by the clock or Close
			case <-time.After(maxListenPause):
			case <-st.l.open.Done():
			}
		}
	}
}

// await waits until it can listen there. It returns nil if the listener was closed
// before.
func (st *stand) await() rcm.Listener {
	l := st.l
	free, canWait := st.fabric.Fabric.(interface {
		AwaitFree(context.Context, netip.AddrPort, rcm.ListenConfig) error
	})
	for pause := minListenPause; ; pause = min(2*pause, maxListenPause) {
		begun := time.Now()
		if canWait && free.AwaitFree(l.open, st.at, st.cfg) == nil && time.Since(begun) > maxListenPause {
			pause = minListenPause // it was no idle question
		}
		if l.open.Err() != nil {
			return nil
		}
		fl, err := st.fabric.Listen(st.at, st.cfg)
		if err == nil {
			l.set.Log.Debug("rnet: listen", "address", st.at, "transport", st.fabric.transport, "waited", true)
			if !l.addFabric(fl) {
				fl.Close()
				return nil
			}
			return fl
		}
		select { // ended by the clock or Close
		case <-time.After(pause):
		case <-l.open.Done():
			return nil
		}
	}
}

// worthWaiting reports whether a listener on a fabric may be had later that
// cannot be had now.
func worthWaiting(err error) bool {
	return !errors.Is(err, rcm.ErrNoRoute) && !errors.Is(err, errors.ErrUnsupported)
}

// addFabric takes in a listener on a fabric, unless the listener is closed.
func (l *Listener) addFabric(fl rcm.Listener) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.fabrics = append(l.fabrics, fl)
	return true
}

func (l *Listener) removeFabric(fl rcm.Listener) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fabrics = slices.DeleteFunc(slices.Clone(l.fabrics), func(one rcm.Listener) bool { return one == fl })
}

// onFabrics returns the listeners on fabrics that there are now.
func (l *Listener) onFabrics() []rcm.Listener {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.fabrics)
}
