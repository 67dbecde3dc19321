package wait

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/fallback"
)

// Goroutines that poll let the network poller look, so that a socket of the process is read
// long before the runtime's monitor would look, after 10 ms: hundreds of thousands of polls.
func TestSocketsAreReadBesideGoroutinesThatPoll(t *testing.T) {
	var stop atomic.Bool
	pollers := map[string]func(b *box, w *Waiter){
		"and find what they wait for": func(b *box, w *Waiter) {
			for !stop.Load() {
				w.Begin()
				b.publish(w)
				b.lock.Wait(w) // ended by its own poll
			}
		},
		"in vain": func(b *box, w *Waiter) {
			b.lock.policy.profile = fallback.Latency
			b.lock.policy.pace.init(time.Hour, time.Hour)
			b.lock.Wait(w) // ended by the publication below
		},
	}
	for name, poll := range pollers {
		for _, of := range [][2]int{{1, 1}, {3, 1}, {4, 2}} {
			t.Run(fmt.Sprint(of[0], " on ", of[1], " ", name), func(t *testing.T) {
				n := of[0]
				onProcessors(t, of[1])
				come := make(chan struct{})
				send := causes["TCP"](t, func() { come <- struct{}{} })
				netpoll.mu.Lock()
				netpoll.every = time.Microsecond
				netpoll.mu.Unlock()
				defer func() {
					netpoll.mu.Lock()
					netpoll.every = netpollEvery
					netpoll.mu.Unlock()
				}()
				stop.Store(false)
				var polls atomic.Int64
				var polling sync.WaitGroup
				boxes, waiters := make([]*box, n), make([]Waiter, n)
				for i := range boxes {
					boxes[i] = newBox(t)
					boxes[i].lock.src = counted{boxes[i], &polls}
					waiters[i].Begin()
					polling.Go(func() { poll(boxes[i], &waiters[i]) })
				}
				between := make([]int64, 30) // polls from when something is sent to a socket to when it is read
				for i := range between {
					before := polls.Load()
					send()
					<-come // ended by the echo
					between[i] = polls.Load() - before
				}
				stop.Store(true)
				for i, b := range boxes {
					b.publish(&waiters[i])
				}
				polling.Wait() // ended by stop, and what was published
				slices.Sort(between)
				require.Less(t, between[len(between)/2], int64(n)*2000)
			})
		}
	}
}

// An answer that nobody has parked for may have come from the runtime's monitor, which looks each
// 10 ms. It does not show that a processor is idle.
func TestOneLookOfTheMonitorsDoesNotMakePollersLookRarely(t *testing.T) {
	n := newNetpoller()
	n.state = netpollAnswered
	n.look()
	require.NotEqual(t, netpollIdle, n.state)
	n.next.Store(0)
	n.state = netpollAnswered
	n.look()
	require.Equal(t, netpollIdle, n.state)
}

// Nobody parks for long where watch does not run, as where others are always runnable.
func TestNobodyParksForLong(t *testing.T) {
	n := newNetpoller()
	n.state = netpollAsked
	n.look() // ended by itself
}

// Who has read the clock before the others counts does not undo what they have counted.
func TestALateMemberOfTheCrowdLeavesItAsItIs(t *testing.T) {
	var c counter
	at := func(n int) time.Duration { return time.Duration(n) << 20 }
	var three [3]uint32
	for i := range three {
		c.join(&three[i], at(9))
	}
	c.join(&three[0], at(10))
	require.Equal(t, 3, c.join(&three[1], at(9)))
	require.Equal(t, 3, c.join(&three[0], at(10)))
}

// Nobody may have polled for a month, nor since a process began that is so old.
func TestTheCrowdIsCountedAgainAfterALongTime(t *testing.T) {
	var c counter
	var one, other uint32
	for at := time.Duration(0); at < 200*24*time.Hour; at += 30 * 24 * time.Hour {
		require.Equal(t, 1, c.join(&one, at+time.Second))
		require.Equal(t, 2, c.join(&other, at+time.Second))
	}
}
