package wait

import (
	"sync"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/stretchr/testify/require"
)

// box is a source and its channel, as a provider has them: what is published while
// it is armed wakes the channel, once.
type box struct {
	lock Lock

	mu      sync.Mutex
	arrived []*Waiter // whom it is for
	armed   bool
	failed  bool

	wake chan struct{}
}

func newBox(t *testing.T) *box {
	b := &box{wake: make(chan struct{}, 1)}
	b.lock.Init(b, b, Config{Accepts: true})
	b.run(t)
	return b
}

// run starts the engine.
func (b *box) run(t *testing.T) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b.lock.Run(&Engine{Period: time.Hour, Tick: func() {}, LoopEvent: func() (told, rest bool) { return false, false }})
		b.lock.Close()
	}()
	t.Cleanup(func() {
		b.mu.Lock()
		b.failed = true
		b.mu.Unlock()
		b.lock.End()
		<-ended
	})
	b.lock.Start(false)
}

func (b *box) Poll() int {
	b.mu.Lock()
	list := b.arrived
	b.arrived = nil
	b.mu.Unlock()
	for _, w := range list {
		b.lock.WakePolled(w)
	}
	return len(list)
}

func (b *box) Arm() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.armed = true
	return nil
}

func (b *box) Disarm() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.armed = false
}

func (b *box) Failed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failed
}

func (b *box) publish(w *Waiter) {
	b.mu.Lock()
	armed := b.armed
	b.armed = false
	b.arrived = append(b.arrived, w)
	b.mu.Unlock()
	if armed {
		b.Wake()
	}
}

func (b *box) Wake() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

func (b *box) Wait(until time.Time) error {
	if until.IsZero() {
		<-b.wake
		return nil
	}
	select {
	case <-b.wake:
	case <-time.After(time.Until(until)):
	}
	return nil
}

func (b *box) WaitThread(until time.Time) error { return b.Wait(until) }

// Whoever looks may be kept from going on for long, with the lock in its hands,
// while others begin to wait and what they wait for arrives.
func TestWhatArrivesDuringADelayIsNoticed(t *testing.T) {
	b := newBox(t)
	// left a moment ago, and armed
	for _, pause := range []time.Duration{0, SweepTime + acceptSweep} {
		time.Sleep(pause)
		var w Waiter
		inside, parked := make(chan struct{}), make(chan struct{})
		looked := make(chan bool)
		go func() {
			for !b.lock.Do(func() {
				close(inside)
				<-parked // ended below: the delay
				b.Poll()
				b.publish(&w) // after the poll
			}) {
			}
			looked <- true
		}()
		<-inside
		w.Begin()
		waited := make(chan struct{})
		go func() { b.lock.Wait(&w); close(waited) }()
		for b.lock.word.load().waiters() == 0 { // ended when it has registered
			time.Sleep(time.Millisecond)
		}
		close(parked)
		<-looked
		select {
		case <-waited:
		case <-time.After(10 * time.Second):
			t.Fatal("lost wake-up")
		}
	}
}

func TestManyWaitersGetWhatIsTheirs(t *testing.T) {
	b := newBox(t)
	var work sync.WaitGroup
	for i := range 8 {
		work.Go(func() {
			var w Waiter
			for n := range 2000 {
				w.Begin()
				go b.publish(&w)
				if (n+i)%16 == 0 {
					time.Sleep(2 * shortestSweep)
				}
				b.lock.Wait(&w) // ended by what is published
			}
		})
	}
	done := make(chan struct{})
	go func() { work.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(60 * time.Second):
		t.Fatal("lost wake-up")
	}
	require.Eventually(t, func() bool { return b.lock.word.load().waiters() == 0 }, 10*time.Second, time.Millisecond)
}

func TestAnAllowanceIsUsedUpAndComesBack(t *testing.T) {
	var p policy
	p.init(&Config{})
	at := time.Hour
	require.True(t, p.afford(at))
	for range 1000 {
		if !p.afford(at) {
			break
		}
		p.tokens -= int64(p.pace.limit)
	}
	require.False(t, p.afford(at), "polling in vain ends")
	for range 1000 {
		p.hit(p.pace.cheap)
	}
	require.False(t, p.afford(at), "waits that cost nothing give nothing")
	require.True(t, p.afford(at+time.Second), "time does")
	for range 100 { // however long it goes on
		for p.afford(at) {
			p.tokens -= int64(p.pace.limit)
		}
		at += time.Minute
	}
	require.True(t, p.afford(at), "it is never given up for good")
}

func TestAnEngineDoesNotPollForAPeerInItsProcess(t *testing.T) {
	for _, profile := range []fallback.Profile{fallback.Balanced, fallback.Latency, fallback.Efficient} {
		l := Lock{cfg: Config{Local: true}}
		l.policy.init(&Config{Profile: profile})
		sp := l.engineSpin()
		sp.hit()
		require.False(t, sp.on(), profile)
	}
}

// However much comes.
func TestAnEngineLeavesALockThatIsAskedFor(t *testing.T) {
	s := &source{poll: func() int { return 1 }}
	l := new(Lock)
	l.Init(s, s, Config{})
	l.rests = false
	await := hang.Start(t, func() { l.serve() })
	l.word.register()
	require.True(t, l.takeOver(time.Now().Add(10*time.Second)))
	await()
}

// What comes for others without end is the engine's, which gives way to other goroutines.
func TestAnOwnerThatIsToSleepLeavesTrafficToTheEngine(t *testing.T) {
	s := &source{poll: func() int { return 1 }}
	l := new(Lock)
	l.Init(s, s, Config{Profile: fallback.Efficient}) // and is ours
	l.word.Store(0)
	var w Waiter
	w.Begin()
	await := hang.Start(t, func() { l.Wait(&w) })
	hang.Eventually(t, "the lock is left", func() bool { return l.word.load().has(armed) })
	require.Len(t, l.call, 1, "the engine is called")
	l.Wake(&w)
	await()
}

// What it finds when it arms may be a part of what has arrived, and be for nobody who waits.
func TestEnsureArmedArmsAlsoIfSomethingHasArrived(t *testing.T) {
	b := &box{wake: make(chan struct{}, 1)}
	b.lock.Init(b, b, Config{})
	b.run(t)
	require.True(t, b.lock.Look())
	b.leaveUnarmed()
	b.publish(new(Waiter))
	b.lock.EnsureArmed()
	require.False(t, b.lock.Unattended())
}

func TestTheSweepArmsAlsoIfSomethingHasArrived(t *testing.T) {
	b := &box{wake: make(chan struct{}, 1)}
	b.lock.Init(b, b, Config{})
	b.run(t)
	b.leaveUnarmed()
	b.publish(new(Waiter))
	require.Equal(t, visitArm, b.lock.visit())
	b.lock.leave() // as round does
	require.False(t, b.lock.Unattended())
}

// leaveUnarmed takes back that the lock, which nobody has, was left armed: no event comes to the engine,
// which could have the lock otherwise.
func (b *box) leaveUnarmed() {
	b.Disarm()
	b.lock.word.Store(0)
}

// What is sent to nobody who waits is taken in soon, however rarely the sweep looked until then, and also where
// the lock was left only now, and another was not.
func TestTheSweepLooksSoonWhenAsked(t *testing.T) {
	sw := sweeper{period: time.Hour, shortest: time.Hour, longest: time.Hour}
	var boxes [2]*box
	for i := range boxes {
		b := &box{wake: make(chan struct{}, 1)}
		b.lock.Init(b, b, Config{})
		b.run(t)
		b.leaveUnarmed()
		sw.add(&b.lock)
		b.publish(new(Waiter))
		boxes[i] = b
	}
	boxes[1].lock.word.Store(uint64(fresh))
	sw.soon()
	for _, b := range boxes {
		for b.lock.Unattended() {
			time.Sleep(time.Millisecond)
		}
	}
}
