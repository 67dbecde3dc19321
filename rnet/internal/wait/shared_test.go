package wait

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// newSharedBoxes returns boxes whose owners hand their locks over to p.
func newSharedBoxes(t *testing.T, p *sharedPoller, n int) []*box {
	p.active.Store(true)
	boxes := make([]*box, n)
	for i := range boxes {
		b := &box{wake: make(chan struct{}, 1)}
		b.lock.Init(b, b, Config{Accepts: true})
		b.lock.shared = p
		b.run(t)
		boxes[i] = b
	}
	return boxes
}

// ends waits until p has left all locks.
func (p *sharedPoller) ends(t *testing.T) {
	require.Eventually(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return !p.running
	}, 10*time.Second, time.Millisecond)
}

func TestASharedPollerLosesNoWakeUp(t *testing.T) {
	var p sharedPoller
	boxes := newSharedBoxes(t, &p, 6)
	var work sync.WaitGroup
	for i, b := range boxes {
		for range 2 {
			work.Go(func() {
				var w Waiter
				for n := range 1000 {
					p.active.Store(true) // it is false when the poller has ended
					w.Begin()
					go b.publish(&w)
					if (n+i)%64 == 0 {
						time.Sleep(sharedIdle)
					}
					b.lock.Wait(&w) // ended by what is published
				}
			})
		}
	}
	done := make(chan struct{})
	go func() { work.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(60 * time.Second):
		t.Fatal("lost wake-up")
	}
	p.ends(t)
	for _, b := range boxes {
		require.Zero(t, b.lock.word.load().waiters())
		require.Eventually(t, func() bool { return !b.lock.Unattended() }, 10*time.Second, time.Millisecond)
	}
}

// Traffic does not keep the poller from leaving a lock that somebody asks for.
func TestASharedPollerLeavesALockThatIsAskedFor(t *testing.T) {
	for _, ask := range []func(*Lock){(*Lock).EnsureArmed, func(l *Lock) { l.LookSoon(time.Minute) }} {
		var p sharedPoller
		p.active.Store(true)
		b := &busyBox{box: box{wake: make(chan struct{}, 1)}}
		b.lock.Init(b, b, Config{Accepts: true})
		b.lock.shared = &p
		b.run(t)
		b.busy.Store(true)
		var w Waiter
		w.Begin()
		ended := make(chan struct{})
		go func() { b.lock.Wait(&w); close(ended) }()
		require.Eventually(t, func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.running
		}, 10*time.Second, time.Millisecond)
		ask(&b.lock)
		p.ends(t)
		b.busy.Store(false)
		b.publish(&w)
		<-ended
	}
}

// busyBox is a box to which something comes all the time, for nobody.
type busyBox struct {
	box
	busy atomic.Bool
}

func (b *busyBox) Poll() int {
	n := b.box.Poll()
	if b.busy.Load() {
		n++
	}
	return n
}

// Polling that finds nothing ends, and is not begun again for a while, which gets longer.
func TestASharedPollerRestsWhereItFindsNothing(t *testing.T) {
	var p sharedPoller
	p.poll()
	require.Equal(t, sharedMinPause, p.pause)
	p.poll()
	require.Equal(t, 2*sharedMinPause, p.pause)
	for range 20 {
		p.poll()
	}
	require.Equal(t, sharedMaxPause, p.pause)

	l := &newSharedBoxes(t, &p, 1)[0].lock
	require.False(t, l.shares(p.t))
	require.True(t, l.shares(p.t+2*sharedMaxPause))

	s := &steady{left: 3}
	var busy Lock
	busy.Init(s, s, Config{})
	busy.rests = false // there is no engine
	p.locks = []sharedLock{{lock: &busy, skips: maxSkips}}
	p.poll()
	require.Zero(t, s.left)
	require.Zero(t, p.pause, "it has paid")
	require.False(t, busy.word.load().has(owned))
	require.True(t, l.shares(p.t+2*sharedMaxPause))
}

// steady is a source of which a number of polls find something.
type steady struct {
	still
	left int
}

func (s *steady) Poll() int {
	if s.left == 0 {
		return 0
	}
	s.left--
	return 1
}
