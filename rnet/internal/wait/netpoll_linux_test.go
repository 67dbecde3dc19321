package wait

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/internal/hang"
)

// The sockets of the process are found ready by who asks the network poller, and goroutines that poll see to it that
// somebody does. (The runtime's monitor does so every 10 ms, but does not make these events.)
func TestGoroutinesThatPollHaveTheNetworkPollerAsked(t *testing.T) {
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
				onProcessors(t, of[1])
				stop.Store(false)
				var polling sync.WaitGroup
				boxes, waiters := make([]*box, of[0]), make([]Waiter, of[0])
				for i := range boxes {
					boxes[i] = newBox(t)
					waiters[i].Begin()
					polling.Go(func() { poll(boxes[i], &waiters[i]) })
				}
				defer func() {
					stop.Store(true)
					for i, b := range boxes {
						b.publish(&waiters[i])
					}
					polling.Wait() // ended by stop, and what was published
				}()
				answers := func() int {
					netpoll.mu.Lock()
					defer netpoll.mu.Unlock()
					return netpoll.answers
				}
				before := answers()
				hang.Eventually(t, "answers", func() bool { return answers() > before+2 }) // one may be the end of watch
			})
		}
	}
}

// Who polls and has no answer leaves the processor to the network poller, which the runtime's monitor would ask much later.
func TestALookLeavesTheProcessorToTheNetworkPoller(t *testing.T) {
	onProcessors(t, 1)
	n := newNetpoller()
	n.tries = netpollFirst - 1 // the first look asks, and each one after it waits for the answer
	answered := func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.answers > 0
	}
	for range 100 { // on a busy machine one may end before the answer
		if n.next.Store(0); answered() {
			return
		}
		n.look()
	}
	t.Fatal("no look was answered")
}

// A look that was in vain for so long only because the machine paused puts the next one off by no more than others do.
func TestAPauseInALookDoesNotPutTheNextOneOff(t *testing.T) {
	n := newNetpoller()
	n.state = netpollAsked
	n.enough = time.AfterFunc(time.Hour, func() { // park sets it to netpollLong
		time.Sleep(20 * netpollLong)
		n.timeout()
	})
	n.look()
	require.LessOrEqual(t, time.Duration(n.next.Load())-now(), netpollPart*netpollLong)
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
