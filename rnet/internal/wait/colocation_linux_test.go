package wait

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// askedPeer is a Peer of which only what it asks for and is asked for is known; -1 for nothing.
type askedPeer struct {
	asked   int // by us
	asks    int
	turn    int
	follows bool // asks for the same
}

func (*askedPeer) PublishCPU(int)         {}
func (*askedPeer) PeerCPU() (int, bool)   { return 0, false }
func (p *askedPeer) AskCPU(cpu, turn int) { p.asked, p.turn = cpu, turn }

func (p *askedPeer) AskedCPU() (cpu, turn int, ok bool) {
	if p.follows {
		return p.asked, p.turn, p.asked >= 0
	}
	return p.asks, p.turn, p.asks >= 0
}

// leader is the end that decides, in a program with its own time.
type leader struct {
	colocation
	peer     askedPeer
	t        time.Duration
	arrived  int
	sessions int

	wait    time.Duration // of one that is no stall
	each    int           // messages for a wait
	stalls  int           // in a window
	delayed bool          // the stalls are waits for a CPU
}

func newLeader(t *testing.T) *leader {
	ld := &leader{t: time.Hour, sessions: 1, wait: 100 * time.Microsecond, each: 1, stalls: 3, delayed: true}
	ld.peer = askedPeer{asked: -1, asks: -1, follows: true}
	ld.id = colocations.Add(1)
	t.Cleanup(func() { leads.leave(ld.id) })
	return ld
}

// run goes on until so many windows have ended.
func (ld *leader) run(windows int) {
	for range windows {
		for begun := ld.begun; ld.begun == begun; {
			took := ld.wait
			if ld.stalls > 0 && ld.waits%32 == 31 && ld.colocation.stalls < ld.stalls {
				took = 3 * stall
			}
			ld.t += took
			ld.arrived += ld.each
			if ld.delayed && ld.state == apart {
				ld.colocation.delayed += took
			}
			ld.lead(&ld.peer, ld.t, ld.arrived, ld.sessions)
		}
	}
}

// untilTrial goes on until a trial begins, or would have.
func (ld *leader) untilTrial() {
	for i := 0; i < 20 && ld.state != trial; i++ {
		ld.run(1)
	}
}

func TestEndsShareACPUWhileThatIsFaster(t *testing.T) {
	ld := newLeader(t)
	ld.untilTrial()
	require.Equal(t, trial, ld.state)
	require.GreaterOrEqual(t, ld.peer.asked, 0)
	ld.wait /= 2
	ld.run(settling + trialWindows)
	require.Equal(t, together, ld.state)
	for range 40 { // checks show that it would be slower apart
		if ld.wait = 50 * time.Microsecond; ld.state == check {
			ld.wait = 100 * time.Microsecond
		}
		ld.run(1)
		require.Contains(t, []colocationState{together, check}, ld.state)
	}
	ld.wait, ld.stalls, ld.delayed = 50*time.Microsecond, 0, false // the others have ended
	for i := 0; ld.state != check; i++ {
		require.Less(t, i, 2*calmWindows)
		ld.run(1)
	}
	require.Negative(t, ld.peer.asked)
	ld.wait = 5 * time.Microsecond
	ld.run(settling + 1)
	require.Equal(t, apart, ld.state)
	ld.run(50)
	require.Equal(t, apart, ld.state)
}

// Where nothing stalls while both are on one CPU, checks come rarely, and stay rare.
func TestChecksStayRareWhereNothingStalls(t *testing.T) {
	ld := newLeader(t)
	ld.untilTrial()
	ld.wait /= 2
	ld.run(settling + trialWindows)
	require.Equal(t, together, ld.state)
	ld.stalls = 0
	const most = int(lastCheck / window)
	for range 10 {
		ld.next = ld.t + time.Hour // calm windows alone end in a check
		ld.run(settling)
		ld.calm = ld.mostCalm - 1
		ld.run(1)
		require.Equal(t, check, ld.state)
		ld.wait *= 2
		ld.run(settling + 1)
		require.Equal(t, together, ld.state)
		ld.wait /= 2
		require.LessOrEqual(t, ld.mostCalm, most)
	}
	require.Equal(t, most, ld.mostCalm)
}

func TestTrialsThatGainNothingBecomeRarer(t *testing.T) {
	ld := newLeader(t)
	var trials int
	last := ld.t
	for pause := firstBackoff; pause < lastBackoff; pause *= 2 {
		for ld.state != trial {
			ld.run(1)
		}
		if trials++; trials > 1 {
			require.GreaterOrEqual(t, ld.t-last, pause/2)
		}
		for ld.state == trial {
			ld.run(1)
		}
		require.Equal(t, apart, ld.state)
		require.Negative(t, ld.peer.asked)
		last = ld.t
	}
}

func TestTrialEndsIfThePeerDoesNotFollow(t *testing.T) {
	ld := newLeader(t)
	ld.peer.follows = false
	ld.untilTrial()
	require.Equal(t, trial, ld.state)
	ld.run(settling)
	require.Equal(t, apart, ld.state)
	require.Negative(t, ld.peer.asked)
}

func TestNoTrialWithoutNeed(t *testing.T) {
	for name, without := range map[string]func(*leader){
		"stalls":             func(ld *leader) { ld.stalls = 0 },
		"waits for a CPU":    func(ld *leader) { ld.delayed = false },
		"quick waits":        func(ld *leader) { ld.wait = 2 * stall },
		"one call at once":   func(ld *leader) { ld.each = 2 },
		"one session in use": func(ld *leader) { ld.sessions = maxSessions + 1 },
	} {
		t.Run(name, func(t *testing.T) {
			ld := newLeader(t)
			without(ld)
			ld.untilTrial()
			assert.Equal(t, apart, ld.state)
			assert.Negative(t, ld.peer.asked)
		})
	}
}

func TestOneSessionAtATimeGathersThreads(t *testing.T) {
	first, second := newLeader(t), newLeader(t)
	first.untilTrial()
	require.Equal(t, trial, first.state)
	second.t = first.t
	second.run(settling + apartWindows + 1)
	require.Equal(t, apart, second.state)
	second.t = first.t + gatheringHeld // the first one does not wait any more
	second.untilTrial()
	require.Equal(t, trial, second.state)
	first.t = second.t
	first.run(1)
	require.Equal(t, apart, first.state)
}

// What the peer asks for costs no more than some moves in a window, and ends when it takes that back.
func TestPeerThatAsksForAnotherCPUEachTime(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var allowed, after unix.CPUSet
	require.NoError(t, unix.SchedGetaffinity(0, &allowed))
	p := &askedPeer{asked: -1}
	c := &colocation{id: colocations.Add(1)}
	t.Cleanup(func() { follows.leave(c.id) })
	at := time.Hour
	c.begin(at, 0)
	moved := 0
	for i := range 10 * maxMoves {
		p.asks = 1<<16 - 1 // there is none such
		for cpu := range 1024 {
			if i%4 > 0 && cpu != currentCPU() && allowed.IsSet(cpu) {
				p.asks = cpu
			}
		}
		p.turn++
		moves := c.moves
		if c.follow(p, at, 1) && c.moves > moves { // the kernel may have moved us there
			moved++
		}
	}
	require.LessOrEqual(t, moved, maxMoves)
	require.Equal(t, allowed.Count() > 1, moved > 0)

	p.asks = currentCPU()
	at += window
	for !c.follow(p, at, 1) { // the kernel may have moved us
		p.asks = currentCPU()
	}
	require.Equal(t, p.asks, p.asked, "says that it follows")
	for at += gatheringHeld; c.follow(p, at, 1); { // it has not asked again
		require.NotEqual(t, p.asks, currentCPU(), "it was moved")
	}
	require.Negative(t, p.asked)
	_, ok := follows.where(at)
	require.False(t, ok)
	for i := 0; !c.follow(p, at, 1); i++ {
		require.Less(t, i, 10*askEvery)
		p.turn++
		p.asks = currentCPU()
	}
	p.asks = -1
	require.False(t, c.follow(p, at, 1))
	require.Negative(t, p.asked)
	_, ok = follows.where(at)
	require.False(t, ok)
	require.NoError(t, unix.SchedGetaffinity(0, &after))
	require.Equal(t, allowed, after)
}

// A process with many sessions in use does not follow one of them.
func TestBusyServerFollowsNobody(t *testing.T) {
	p := &askedPeer{asked: -1, asks: currentCPU()}
	c := &colocation{id: colocations.Add(1)}
	for range 2 * askEvery {
		require.False(t, c.follow(p, time.Hour, maxSessions+1))
	}
}

// A program whose pauses leave no window whole does not share a CPU for good, nor does one that uses more sessions.
func TestEndsDoNotShareACPUForLongUnchecked(t *testing.T) {
	gathered := func(t *testing.T, windows int) *leader {
		ld := newLeader(t)
		ld.untilTrial()
		ld.wait /= 2
		ld.run(windows)
		return ld
	}
	for name, s := range map[string]struct {
		windows      int
		before, then colocationState
	}{
		"trial":    {0, trial, apart},
		"together": {settling + trialWindows, together, check},
	} {
		t.Run(name, func(t *testing.T) {
			ld := gathered(t, s.windows)
			require.Equal(t, s.before, ld.state)
			for range int(firstCheck/longWait) + 1 {
				ld.t += longWait
				ld.lead(&ld.peer, ld.t, ld.arrived, ld.sessions)
			}
			require.Equal(t, s.then, ld.state)
			require.Negative(t, ld.peer.asked)
		})
	}
	t.Run("alone", func(t *testing.T) {
		ld := gathered(t, settling+trialWindows)
		for range 3 {
			ld.peer.follows = false // it had no time yet
			ld.run(1)
			require.Equal(t, together, ld.state)
			ld.peer.follows = true
			ld.run(settling + 1)
			require.NotEqual(t, apart, ld.state)
		}
		ld.peer.follows = false
		ld.run(aloneWindows + settling + 1)
		require.Equal(t, apart, ld.state)
		require.Negative(t, ld.peer.asked)
	})
	t.Run("sessions", func(t *testing.T) {
		ld := gathered(t, settling+trialWindows)
		ld.sessions = maxSessions + 1
		ld.run(1)
		require.Equal(t, apart, ld.state)
		require.Negative(t, ld.peer.asked)
	})
}
