package rnet

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/seed-b9b531af/ramjet/fallback"
)

// A session that is accepted is at work first, and then it waits for its peer. At most
// maxSetUps are at work at once, in all listeners of the process together: a storm of
// dials must not make each of them slow. That a peer is slow does not mean that it is
// hostile: of a thousand processes that dial at once, most wait for a processor. So those that wait
// hold up nobody, and are left alone, until mostWaiting of them wait. Then the next set-up does not
// begin before one of them is over, or has waited for silentTime and is ended. So an attacker whose
// peers send nothing delays another dial by silentTime for each time that the queues before this
// one are full of others.
//
// A set-up does not wait for its peer any more when that has sent its first message,
// which is before ours: what is ended here, no dial has returned.
const (
	mostWaiting = 1024
	silentTime  = 500 * time.Millisecond
)

// mostWaitingNow is how many may wait for their peers: they must not have all descriptors.
func mostWaitingNow() int { return max(1, min(mostWaiting, descriptorLimit()/16)) }

// errGaveWay ends a set-up whose peer has said nothing while many others came.
var errGaveWay = errors.New("rnet: the peer took its time, and others were waiting")

// acceptances are the sessions that are being accepted.
type acceptances struct {
	work *fallback.Gate
	most func() int // how many may wait for their peers, apart from those at work

	mu      sync.Mutex
	waiting []*acceptance // for their peers, the first first; guarded by mu
	left    chan struct{} // closed when one leaves waiting; nil if nobody wants to know; guarded by mu
}

// acceptance is one of them.
type acceptance struct {
	all    *acceptances
	end    context.CancelCauseFunc
	atWork bool // one goroutine uses it
	since  time.Time
}

// enter waits until a set-up may begin, no longer than ctx is open. Each nil must be
// followed by one begin.
func (l *acceptances) enter(ctx context.Context) error {
	if err := l.work.Enter(ctx); err != nil {
		return err
	}
	for {
		left, wait := l.room()
		if left == nil {
			return nil
		}
		silent := time.NewTimer(wait)
		select {
		case <-left:
		case <-silent.C:
		case <-ctx.Done():
			silent.Stop()
			l.work.Leave()
			return ctx.Err()
		}
		silent.Stop()
	}
}

// room ends the first that waits, if as many wait as may and it has waited for long enough.
// Otherwise it says after which time to ask again, or when left is closed. left is nil if one more
// may wait.
func (l *acceptances) room() (left <-chan struct{}, after time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) < l.most() {
		return nil, 0
	}
	first := l.waiting[0]
	if after := silentTime - time.Since(first.since); after > 0 {
		if l.left == nil {
			l.left = make(chan struct{})
		}
		return l.left, after
	}
	l.remove(0)
	first.end(errGaveWay)
	return nil, 0
}

// remove takes one out of waiting. mu is held.
func (l *acceptances) remove(i int) {
	l.waiting = slices.Delete(l.waiting, i, i+1)
	if l.left != nil {
		close(l.left)
		l.left = nil
	}
}

// begin begins a set-up after enter. Its context ends with parent, and when it must give
// way. leave must be called when it is over.
func (l *acceptances) begin(parent context.Context) (context.Context, *acceptance) {
	ctx, end := context.WithCancelCause(parent)
	return ctx, &acceptance{all: l, end: end, atWork: true}
}

// waits notes that all is done that can be without the peer.
func (a *acceptance) waits() {
	a.since = time.Now()
	a.all.mu.Lock()
	a.all.waiting = append(a.all.waiting, a)
	a.all.mu.Unlock()
	a.atWork = false
	a.all.work.Leave()
}

// answered notes that the peer's first message has come. From now on the set-up does not give way.
func (a *acceptance) answered() {
	a.all.mu.Lock()
	defer a.all.mu.Unlock()
	if i := slices.Index(a.all.waiting, a); i >= 0 {
		a.all.remove(i)
	}
}

func (a *acceptance) leave() {
	a.answered()
	a.end(nil)
	if a.atWork {
		a.all.work.Leave()
	}
}
