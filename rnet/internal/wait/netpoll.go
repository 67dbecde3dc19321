package wait

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// netpoll sees to it that somebody asks Go's network poller for events while goroutines of
// this package poll. The runtime does so when a processor has nothing else to run, and every
// 10 ms. A goroutine that polls, and lets others run by runtime.Gosched, is something to run:
// where as many poll as there are processors, all sockets of the process would be found ready
// 10 ms late. So pollers make an event there now and then, which watch waits for. Where watch
// has not run by the next time, they park until it does.
var netpoll = newNetpoller()

type netpoller struct {
	next atomic.Int64 // when to look next, as now tells it

	mu      sync.Mutex
	tries   int    // of ask since watch has ended
	event   *event // nil if watch does not run
	state   netpollState
	calm    int         // answers in a row for which nobody had parked
	answers int         // waits of watch that ended
	seen    *sync.Cond  // one more of them, or parked for netpollLong
	parked  int         // goroutines that wait for it
	enough  *time.Timer // ends that
}

func newNetpoller() *netpoller {
	n := new(netpoller)
	n.seen = sync.NewCond(&n.mu)
	return n
}

type netpollState uint8

const (
	netpollIdle     netpollState = iota
	netpollAsked                 // the event was made
	netpollAnswered              // watch has seen it
)

const (
	netpollEvery   = 250 * time.Microsecond // from an event to the look whether watch has seen it
	netpollSeveral = 8                      // times as long with several processors: it parts sessions from who serves them
	netpollRarely  = 4 * time.Millisecond   // from there to the next event, if others look
	netpollCalm    = 2                      // answers in a row that show it: one may be the runtime's, each 10 ms
	netpollFirst   = 16                     // tries before watch is started: who polls rarely does without
	netpollLinger  = 100 * time.Millisecond // from the last event to the end of watch

	// Nobody parks for longer than netpollLong. It has been in vain then: other goroutines are runnable
	// all the time, or the thread had no CPU. The next time is after netpollPart times as long.
	netpollLong = time.Millisecond
	netpollPart = 10
)

// due reports whether to look at t.
func (n *netpoller) due(t time.Duration) bool { return int64(t) >= n.next.Load() }

// look makes an event, or parks until watch has seen the one that was made.
func (n *netpoller) look() {
	n.mu.Lock()
	defer n.mu.Unlock()
	t := now()
	if !n.due(t) {
		return
	}
	pause := netpollEvery
	if procs > 1 {
		pause *= netpollSeveral
	}
	switch n.state {
	case netpollAsked:
		begin := t
		if t = n.park(begin); !n.due(t) {
			return
		}
		if t-begin >= netpollLong {
			pause = netpollPart * netpollLong // however long the thread had no CPU meanwhile
		}
		n.ask()
	case netpollAnswered:
		if n.calm++; n.calm < netpollCalm {
			n.ask()
			break
		}
		n.state = netpollIdle
		pause = netpollRarely
	case netpollIdle:
		n.ask()
	}
	n.next.Store(int64(t + pause))
}

// park waits for watch, but no longer than netpollLong: the caller may own a lock, and what it
// waits for may have come. Timers fire where goroutines are runnable all the time. It returns the time.
func (n *netpoller) park(begin time.Duration) time.Duration {
	n.calm = 0
	if n.parked++; n.parked == 1 {
		if n.enough == nil {
			n.enough = time.AfterFunc(netpollLong, n.timeout)
		} else {
			n.enough.Reset(netpollLong)
		}
	}
	t := begin
	for answers := n.answers; n.answers == answers && t-begin < netpollLong; t = now() {
		n.seen.Wait() // ended by watch, or enough
	}
	if n.parked--; n.parked == 0 {
		n.enough.Stop()
	}
	return t
}

// timeout is called by enough.
func (n *netpoller) timeout() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.parked > 0 {
		n.enough.Reset(netpollLong) // for who parked later
		n.seen.Broadcast()
	}
}

func (n *netpoller) ask() {
	if n.event == nil {
		if n.tries++; n.tries%netpollFirst != 0 {
			return
		}
		if n.event = newEvent(); n.event == nil {
			return
		}
		go n.watch(n.event) // ends netpollLinger after the last event
	}
	n.state = netpollAsked
	n.event.signal()
}

// watch waits in the network poller.
func (n *netpoller) watch(e *event) {
	for {
		err := e.wait(time.Now().Add(netpollLinger)) // ended by ask, or the time
		n.mu.Lock()
		if n.state == netpollAsked && errors.Is(err, os.ErrDeadlineExceeded) {
			n.mu.Unlock() // it ends the next wait
			continue
		}
		n.state = netpollAnswered
		n.answers++
		n.seen.Broadcast()
		if err != nil {
			n.event, n.tries = nil, 0
			e.close()
			n.mu.Unlock()
			return
		}
		n.mu.Unlock()
	}
}

// giveWay lets the goroutines run that are runnable, and now and then those for whom something
// has come to a socket. It returns the time.
func (p *policy) giveWay() time.Duration {
	runtime.Gosched()
	t := now()
	if p.mayLook(t) {
		netpoll.look()
		t = now()
	}
	return t
}

// mayLook reports whether to look at t.
func (p *policy) mayLook(t time.Duration) bool {
	return netpoll.due(t) && (procs == 1 || crowd.join(&p.joined, t) >= procs)
}

// crowd counts the locks whose owners poll. Where they are fewer than the processors, one of
// these is idle as a rule, and its thread waits in the network poller. If watch does not run
// then, that thread has no CPU, and to park would help nobody.
var crowd counter

// counter has a period of 2^20 ns, how many were counted in the period before, and how many
// in this one.
type counter struct{ atomic.Uint64 }

// join counts a lock in the period of t, and returns how many were counted in it, or in the one before.
// joined is the period in which that lock was counted last.
func (c *counter) join(joined *uint32, t time.Duration) int {
	period := uint32(t >> 20)
	for {
		v := c.Load()
		last, before, count := uint32(v>>32), uint16(v>>16), uint16(v)
		if ago := last - period; ago != 0 && ago < 1<<16 { // more is a later time, in which nobody counted
			return int(max(before, count)) // t is from before what others have counted since
		}
		if last != period {
			if before, count = count, 0; period-last > 1 {
				before = 0
			}
		} else if *joined == period {
			return int(max(before, count))
		}
		if *joined != period {
			count++
		}
		if c.CompareAndSwap(v, uint64(period)<<32|uint64(before)<<16|uint64(count)) {
			*joined = period
			return int(max(before, count))
		}
	}
}
