package rnet

import (
	"time"

	"github.com/seed-b9b531af/ramjet/rnet/internal/mux"
)

// A listener whose TCP socket another process has too, and whose place on the software HCA's
// fabric that process waits for, is not the end of the address when it closes. Over TCP the
// queue of the socket goes on to live. Here
//
//  1. the place is offered to the other process, and nothing else changes until that answers: one
//     that is stopped, or too busy, would let everybody wait;
//  2. the fabric's listener is handed over: who looks for one finds the other process;
//  3. the sessions are told that they get no more streams (GO_AWAY). Those that were opened
//     before are here, or on their way, and their dials have returned: they are taken still,
//     and Accept goes on to return them;
//  4. each peer answers after the last OPEN. When all have, or their sessions have ended, the
//     queue gets no longer, and Accept fails once it is empty;
//  5. a peer that does not answer, and a program that does not call Accept any more, are
//     waited for no longer than drainTime.

// drainTime is how long a listener that has closed takes streams for the listener that
// comes after it.
const drainTime = 5 * time.Second

// offer offers the places on the fabrics to who waits for them, and returns when they have
// answered, or are not worth a wait.
func (l *Listener) offer() {
	for _, fl := range l.onFabrics() {
		if f, ok := fl.(interface{ Offer() }); ok {
			f.Offer()
		}
	}
}

// handOver gives the places on the fabrics to who waits for them, and reports whether there
// was one.
func (l *Listener) handOver() bool {
	handed := false
	for _, fl := range l.onFabrics() {
		if f, ok := fl.(interface{ HandOver() bool }); ok {
			handed = f.HandOver() || handed
		}
	}
	return handed
}

// drain has streams taken until all sessions have ended, or said that no more come.
func (l *Listener) drain() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.draining = true
	if len(l.sessions) == 0 {
		l.drained()
	}
	if !l.over || l.queued() > 0 {
		l.timer = time.AfterFunc(drainTime, l.endDrain)
	}
}

// drained notes that no more streams come. mu is held.
func (l *Listener) drained() {
	l.over = true
	l.signal()
}

// endDrain ends what is left after drainTime.
func (l *Listener) endDrain() {
	retireAll(l.openSessions(), (*mux.Mux).Retire)
	l.resetQueue()
}
