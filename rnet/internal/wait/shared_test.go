package wait

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/hang"
)

// beShared makes the owners of l hand it over to p.
func (p *sharedPoller) beShared(t *testing.T, l *Lock) {
	l.shared = p
	sharedActive.Add(1)
	t.Cleanup(func() { sharedActive.Add(-1) })
}

// ends waits until p has left all locks.
func (p *sharedPoller) ends(t *testing.T) {
	hang.Eventually(t, "the poller ends", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return !p.running
	})
}

func TestASharedPollerLosesNoWakeUp(t *testing.T) {
	var p sharedPoller
	boxes := make([]*box, 6)
	var work sync.WaitGroup
	for i := range boxes {
		b := newBox(t)
		p.beShared(t, &b.lock)
		boxes[i] = b
		for range 2 {
			work.Go(func() {
				var w Waiter
				for n := range 1000 {
					p.notBefore.Store(0) // so that locks are handed over, whether it pays or not
					w.Begin()
					go b.publish(&w)
					if (n+i)%64 == 0 {
						time.Sleep(2 * time.Millisecond)
					}
					b.lock.Wait(&w) // ended by what is published
				}
			})
		}
	}
	hang.Start(t, work.Wait)()
	p.ends(t)
	require.NotZero(t, p.polled)
	for _, b := range boxes {
		require.Zero(t, b.lock.word.load().waiters())
		hang.Eventually(t, "the lock is attended", func() bool { return !b.lock.Unattended() })
	}
}

// Traffic does not keep the poller from leaving a lock that somebody asks for.
func TestASharedPollerLeavesALockThatIsAskedFor(t *testing.T) {
	for what, ask := range map[string]func(*Lock) bool{
		"a note": func(l *Lock) bool { l.word.note(); return true },
		"LookSoon": func(l *Lock) bool {
			l.word.register()
			return l.takeOver(time.Now().Add(10 * time.Second))
		},
	} {
		t.Run(what, func(t *testing.T) {
			p := sharedPoller{t: now()}
			var traffic atomic.Int32
			traffic.Store(1)
			l, _ := p.newLocks(t, func() int { return int(traffic.Load()) }, 3*procs) // so many that it pays to go on
			await := hang.Start(t, p.poll)
			defer await()
			defer traffic.Store(0)
			require.True(t, ask(l[0]))
			if what == "LookSoon" {
				l[0].leave()
			}
			hang.Eventually(t, "the lock is left", func() bool { return !l[0].word.load().has(owned) })
		})
	}
}

// newLocks gives p locks of which nobody else knows. poll is their Poll.
func (p *sharedPoller) newLocks(t *testing.T, poll func() int, n int) (locks []*Lock, s *source) {
	s = &source{poll: poll}
	for range n {
		l := new(Lock)
		l.Init(s, s, Config{})
		l.rests = false // there is no engine
		p.locks = append(p.locks, sharedLock{lock: l, hit: p.polled})
		locks = append(locks, l)
	}
	return locks, s
}

type source struct {
	still
	poll func() int
}

func (s *source) Poll() int { return s.poll() }
func (*source) Wake()       {}

// Polling that finds nothing ends, and is not begun again for a while, which gets longer.
func TestASharedPollerRestsWhereItFindsNothing(t *testing.T) {
	var p sharedPoller
	vain := func() {
		p.newLocks(t, func() int { return 0 }, 1)
		p.poll()
	}
	vain()
	require.Equal(t, sharedMinPause, p.pause)
	vain()
	require.Equal(t, 2*sharedMinPause, p.pause)
	for range 20 {
		vain()
	}
	require.Equal(t, sharedMaxPause, p.pause)

	var l Lock
	l.Init(newStill(), newStill(), Config{})
	p.beShared(t, &l)
	until := time.Duration(p.notBefore.Load())
	require.False(t, l.shares(until-1))
	require.True(t, l.shares(until))

	left := 3
	locks, _ := p.newLocks(t, func() int {
		if left == 0 {
			return 0
		}
		left--
		return 1
	}, 1)
	p.locks[0].skips = maxSkips
	p.poll()
	require.Zero(t, left)
	require.Zero(t, p.pause, "it has paid")
	require.False(t, locks[0].word.load().has(owned))
}

// What comes at a pace, before the poller has polled in vain for long enough to end, does not pay for it.
func TestASharedPollerEndsWhereItFindsLittle(t *testing.T) {
	p := sharedPoller{t: now()}
	polls := 0
	p.newLocks(t, func() int {
		polls++
		p.vain += longPoll // as if each look took so long, on however slow a machine
		if polls%9 == 0 {
			return 1
		}
		return 0
	}, 3*procs)
	p.poll() // would not end
	require.NotZero(t, p.pause)
}

// Where the peers of a few locks are left, their owners do better by themselves.
func TestASharedPollerEndsWhereFewAreInUse(t *testing.T) {
	p := sharedPoller{t: now()}
	p.newLocks(t, func() int { return 1 }, 1)
	p.poll() // would not end
	require.Zero(t, p.pause)
}

func TestALockIsNotPolledForLongForWhichNothingComes(t *testing.T) {
	var p sharedPoller
	locks, _ := p.newLocks(t, func() int { return 0 }, 1)
	p.polled = sharedIdle
	p.round()
	require.Len(t, p.locks, 1)
	p.polled++
	p.round()
	require.Empty(t, p.locks)
	require.False(t, locks[0].word.load().has(owned))
	require.True(t, locks[0].word.load().has(armed))
}

// Other goroutines keep the runtime from looking at sockets beside a poller, as many processors as there are.
func TestASharedPollerSeesToSockets(t *testing.T) {
	netpoll.next.Store(0)
	var p sharedPoller
	p.giveWay(true)
	require.NotZero(t, netpoll.next.Load(), "it has not looked")
}

// A peer that does not send again at once has no more slices for a while.
func TestASliceThatWasInVainIsFollowedByPollsWithoutOne(t *testing.T) {
	var p sharedPoller
	p.newLocks(t, func() int { return 0 }, 1)
	s := &p.locks[0]
	p.pollOne(s)
	require.Equal(t, minSkips, s.skips)
	p.pollOne(s)
	require.Equal(t, maxSkips, s.skips)
	s.lock.src.(*source).poll = func() int { return 1 }
	p.round()
	require.Equal(t, maxSkips-1, s.skips)
}
