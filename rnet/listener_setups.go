package rnet

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/seed-b9b531af/ramjet/fallback"
)

// Of the sessions that are accepted at once, maxSetUps have a place each, in all
// listeners of the process together: a storm of dials must not make each of them
// slow. But a set-up waits for its peer, which may say nothing, and peers that say
// nothing must not keep others out. So a set-up that takes longer than placeTime
// gives its place to the next one, and goes on without. Of those maxSlow may do so:
// one more, and the oldest is ended. So an attacker who keeps all places full delays
// others by placeTime only, and slow peers still have placeTime·(1+maxSlow/maxSetUps),
// half a second.
const (
	placeTime = 100 * time.Millisecond
	maxSlow   = 4 * maxSetUps
)

// errGaveWay ends a set-up whose peer has said nothing while many others came.
var errGaveWay = errors.New("rnet: the peer took its time, and others were waiting")

// setUpPlaces are the places for sessions that are accepted.
type setUpPlaces struct {
	gate *fallback.Gate

	mu   sync.Mutex
	slow []*acceptance // the oldest first; guarded by mu
}

// acceptance is a set-up that has, or had, a place.
type acceptance struct {
	end   context.CancelCauseFunc
	timer *time.Timer
	slow  bool // it has given its place away; guarded by setUpPlaces.mu
	over  bool // guarded by setUpPlaces.mu
}

// enter waits for a place, no longer than ctx is open. Each nil must be followed by
// one begin.
func (p *setUpPlaces) enter(ctx context.Context) error { return p.gate.Enter(ctx) }

// begin begins a set-up, with the place that enter gave. Its context ends with
// parent, and when it must give way. leave must be called when it is over.
func (p *setUpPlaces) begin(parent context.Context) (ctx context.Context, leave func()) {
	ctx, end := context.WithCancelCause(parent)
	a := &acceptance{end: end}
	p.mu.Lock()
	a.timer = time.AfterFunc(placeTime, func() { p.giveWay(a) })
	p.mu.Unlock()
	return ctx, func() { p.leave(a) }
}

// giveWay gives away the place of a set-up that takes its time.
func (p *setUpPlaces) giveWay(a *acceptance) {
	p.mu.Lock()
	if a.over {
		p.mu.Unlock()
		return
	}
	a.slow = true
	p.slow = append(p.slow, a)
	var oldest *acceptance
	if len(p.slow) > maxSlow {
		oldest = p.slow[0]
		p.slow = slices.Delete(p.slow, 0, 1)
	}
	p.mu.Unlock()
	if oldest != nil {
		oldest.end(errGaveWay)
	}
	p.gate.Leave()
}

func (p *setUpPlaces) leave(a *acceptance) {
	a.end(nil)
	p.mu.Lock()
	a.over = true
	a.timer.Stop()
	if i := slices.Index(p.slow, a); i >= 0 {
		p.slow = slices.Delete(p.slow, i, i+1)
	}
	slow := a.slow
	p.mu.Unlock()
	if !slow {
		p.gate.Leave()
	}
}
