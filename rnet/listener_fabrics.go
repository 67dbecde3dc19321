package rnet

import (
	"context"
	"errors"
	"net/netip"
	"slices"
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

// stand is a place for a listener on a fabric.
type stand struct {
	fabric fabric
	at     netip.AddrPort
	cfg    rcm.ListenConfig
}

// serveFabric serves the peers that come to fl, or if that is nil or is lost, to
// the next listener that can be had, until the listener is closed.
func (l *Listener) serveFabric(st stand, fl rcm.Listener) {
	for {
		if fl == nil {
			if fl = l.awaitFabric(st); fl == nil {
				return
			}
		}
		begun := time.Now()
		l.acceptFabric(st.fabric.transport, fl)
		l.removeFabric(fl)
		fl.Close()
		fl = nil
		if time.Since(begun) < maxListenPause { // the next one may be lost as soon
			select { // ended by the clock or Close
			case <-time.After(maxListenPause):
			case <-l.open.Done():
			}
		}
	}
}

// awaitFabric waits until it can listen on a fabric. It returns nil if the
// listener was closed before.
func (l *Listener) awaitFabric(st stand) rcm.Listener {
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
			l.set.log.Debug("rnet: listen", "address", st.at, "transport", st.fabric.transport, "waited", true)
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
