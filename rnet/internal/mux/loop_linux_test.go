package mux

import (
	"bytes"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/rnet/internal/handloop"
	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
)

// soon is how long a test waits where a wake-up may have been lost: a keepalive
// would make up for it later.
const soon = link.KeepAlivePeriod / 3

// handLoop is an event loop that a test runs by hand.
type handLoop struct {
	handloop.Loop[*LoopStream]
	poller *Poller
}

type sink = handloop.Sink[*LoopStream]

func (l *handLoop) Accept(s *LoopStream) Sink { return &sink{Loop: &l.Loop, Stream: s} }

func noWork() bool { return false }

func newHandLoop() *handLoop {
	l := new(handLoop)
	l.poller = NewPoller(l, fallback.Balanced)
	l.Poller = l.poller
	return l
}

// dialsOnHandLoop makes a loop, and a session that it has dialed.
func dialsOnHandLoop(t testing.TB) (l *handLoop, dialed, accepted *end) {
	t.Helper()
	l = newHandLoop()
	k := overSoft
	k.dialPoller = l.poller
	dialed, accepted = k.pair(t)
	t.Cleanup(l.poller.Close) // before the muxes are waited for
	return l, dialed, accepted
}

// onHandLoop makes a loop, and streams to it that are open on both sides.
func onHandLoop(t testing.TB, k carrier, streams int) (l *handLoop, dialed []*Stream) {
	t.Helper()
	l = newHandLoop()
	k.poller = l.poller
	far, _ := k.pair(t)
	t.Cleanup(l.poller.Close) // before the muxes are waited for
	for range streams {
		dialed = append(dialed, far.openWhenTold(t))
		l.Until(t, "the stream is open", func() bool { return len(l.Sinks) == len(dialed) })
	}
	return l, dialed
}

func TestWakeEndsTheSleepOfALoop(t *testing.T) {
	l, _ := onHandLoop(t, overSoft, 1)
	l.Sleeps(t)
	l.poller.warm(l.Sinks[0].Stream.m)
	l.poller.Poll()
	var over atomic.Bool
	woken := make(chan struct{})
	go func() {
		defer close(woken)
		for !over.Load() {
			l.poller.Wake()
			time.Sleep(time.Millisecond)
		}
	}()
	end := time.Now().Add(hang.Time)
	require.True(t, l.poller.Sleep(end, noWork))
	over.Store(true)
	<-woken
	require.True(t, time.Now().Before(end))
}

// Work that comes just before Wake could end the sleep is seen.
func TestALoopThatHasWorkDoesNotSleep(t *testing.T) {
	l, _ := onHandLoop(t, overSoft, 1)
	l.Sleeps(t)
	l.poller.warm(l.Sinks[0].Stream.m)
	l.poller.Poll()
	hang.Start(t, func() {
		asked := false
		assert.True(t, l.poller.Sleep(time.Now().Add(2*hang.Time), func() bool {
			asked = true
			assert.NotNil(t, l.poller.sleeping.Load(), "Wake ends the sleep")
			return true
		}))
		assert.True(t, asked)
	})()
}

// The answer of the peer's device is there, and nobody has looked.
func TestAHandlerThatTakesLongDoesNotEndTheSession(t *testing.T) {
	overEach(t, wireLike, func(t *testing.T, device string) {
		l, dialed := onHandLoop(t, carrier{device: device}, 1)
		m := l.Sinks[0].Stream.m
		for range 4 {
			m.keepAlive()
		}
		require.NoError(t, m.Err())
		l.Sleeps(t)
		m.keepAlive()
		l.Until(t, "the answer", func() bool { return m.link.Reached(link.Mark{Probes: 1}) })
		_, err := dialed[0].Write([]byte("x"))
		require.NoError(t, err)
		l.Until(t, "the data", func() bool { return len(l.Sinks[0].Got) > 0 })
	})
}

func TestALoopSleepsOnItsThreadWhileItsSleepsAreShort(t *testing.T) {
	l, _ := onHandLoop(t, overSoft, 1)
	l.Sleeps(t)
	sleeps := func() bool {
		l.poller.warm(l.Sinks[0].Stream.m)
		l.poller.Poll()
		return l.poller.Sleep(time.Now().Add(time.Millisecond), noWork)
	}
	for range 16 {
		l.poller.Slept(time.Millisecond)
	}
	require.Equal(t, runtime.GOMAXPROCS(0) == 1, sleeps())
	for range 32 {
		l.poller.Slept(20 * time.Microsecond)
	}
	require.True(t, sleeps())
}

// The engine leaves the channel after an event, and comes back when the loop does not wait there any more.
func TestALoopParksInTheEnginesPlace(t *testing.T) {
	l, dialed := onHandLoop(t, overSoft, 1)
	m := l.Sinks[0].Stream.m
	end := time.Now().Add(hang.Time)
	sends := 0
	message := func() {
		_, err := dialed[0].Write([]byte("x"))
		assert.NoError(t, err)
	}
	came := func() bool { return len(l.Sinks[0].Got) == sends }
	for range 20 {
		l.Sleeps(t) // with the engine at the channel
		sends++
		message()
		l.Until(t, "the message is there", came)
		for !l.poller.Park(time.Now(), noWork) {
			l.Sleeps(t)
			sends++
			message()
			l.Until(t, "the message is there", came)
		}
		for range 20 {
			sends++
			sent := hang.Start(t, message)
			for !came() {
				require.True(t, l.poller.Park(end, noWork)) // ended by the message, or credit
				l.poller.Poll()
				require.True(t, time.Now().Before(end), "a wait went on")
			}
			sent()
		}
	}
	failed := make(chan struct{})
	go func() {
		defer close(failed)
		m.Fail(io.EOF)
	}()
	for m.Err() == nil {
		l.poller.Park(end, noWork)
		l.poller.Poll()
	}
	<-failed
	require.True(t, time.Now().Before(end), "a wait went on")
}

// A session that has ended is garbage, also where a loop sleeps, or no loop gathers anything.
func TestAListThatASessionHasLeftDoesNotHoldIt(t *testing.T) {
	l, _ := onHandLoop(t, overSoft, 1)
	l.Sleeps(t)
	for _, m := range l.poller.hot[:cap(l.poller.hot)] {
		require.Nil(t, m)
	}
	out := &l.Sinks[0].Stream.m.out
	out.mu.Lock()
	corkWatch.add(out)
	out.mu.Unlock()
	hang.Eventually(t, "the cork is looked after no more", func() bool {
		corkWatch.mu.Lock()
		defer corkWatch.mu.Unlock()
		return !corkWatch.running
	})
	for _, s := range corkWatch.entries[:cap(corkWatch.entries)] {
		require.Nil(t, s)
	}
}

// A peer can fill the ring with small frames, of which each is an event.
func TestASessionThatRestsKeepsNoLongListOfEvents(t *testing.T) {
	l, dialed := onHandLoop(t, overSoft, 1)
	m, far := l.Sinks[0].Stream.m, dialed[0].m
	const messages, frames = 8, 100
	far.out.mu.Lock()
	for range messages {
		for range frames {
			require.True(t, far.link.Gathers(1))
			far.link.Gather(link.Header{Stream: dialed[0].id, Kind: FrameData}, []byte("x"))
		}
		far.link.Flush()
	}
	far.out.mu.Unlock()
	l.Until(t, "all of them are there", func() bool { return len(l.Sinks[0].Got) == messages*frames })
	require.Greater(t, cap(m.loop.events), idleEvents)
	l.Sleeps(t)
	require.LessOrEqual(t, cap(m.loop.events), idleEvents)
}

// As a Close of a stream does: the process may exit right after the loop has ended.
func TestALoopThatEndsWaitsForRoomForTheEndsOfItsStreams(t *testing.T) {
	l, dialed := onHandLoop(t, overSoft, 3000)
	goOn := stopPolling(t, dialed[0].m)
	for _, k := range l.Sinks {
		k.Stream.Close(false)
	}
	m := l.Sinks[0].Stream.m
	require.True(t, m.out.blocked.Load(), "all FINs had room")
	unsent, took := 0, time.Duration(0)
	closing := make(chan struct{})
	go func() { // ended by the credit
		defer close(closing)
		begin := time.Now()
		l.poller.Close()
		took = time.Since(begin)
		for _, k := range l.Sinks {
			if k.Stream.ends.Load()&endFinSent == 0 {
				unsent++
			}
		}
	}()
	select {
	case <-closing:
	case <-time.After(FlushTime / 20):
	}
	goOn()
	hang.Receive(t, closing, "the end of the loop")
	if took < FlushTime { // else the machine was too busy
		require.Zero(t, unsent)
	}
}

// More streams want to send than the ring has room for. What comes back of it
// wakes as many as there is room for, not all each time, and each that is woken
// comes back.
func TestCreditWakesAsManyStreamsAsHaveRoom(t *testing.T) {
	const streams, messages, size = 800, 8, 256
	l, dialed := onHandLoop(t, overNarrow, streams)
	var readers sync.WaitGroup
	var whole atomic.Int32
	for _, c := range dialed {
		readers.Go(func() {
			if n, _ := io.CopyN(io.Discard, c, messages*size); n == messages*size {
				whole.Add(1)
			}
		})
	}
	message := make([]byte, size)
	left := make([]int, streams)
	m := l.Sinks[0].Stream.m
	most := 0
	for i, k := range l.Sinks {
		left[i], k.Writables = messages*size, 1
	}
	l.Until(t, "everything is sent", func() bool {
		m.out.mu.Lock()
		most = max(most, m.out.awake)
		m.out.mu.Unlock()
		all := true
		for i, k := range l.Sinks {
			for left[i] > 0 && k.Writables > 0 {
				n, err := k.Stream.Write(message)
				require.NoError(t, err)
				left[i] -= n
				if n < size {
					k.Writables = 0
				}
			}
			all = all && left[i] == 0
		}
		return all
	})
	readers.Wait()
	require.EqualValues(t, streams, whole.Load())
	require.Greater(t, most, 1, "they had to wait")
	require.LessOrEqual(t, most, link.MinRing/size)
	require.Zero(t, m.out.awake)
	require.Zero(t, m.out.promised)
}

func TestAnswersOfABatchShareMessages(t *testing.T) {
	const streams = 32
	l, dialed := onHandLoop(t, overSoft, streams)
	l.Answer = true
	m := l.Sinks[0].Stream.m
	before := m.link.Mark().Requests
	for _, c := range dialed {
		_, err := c.Write(fmt.Append(nil, "request ", c.id))
		require.NoError(t, err)
	}
	m.loop.slow = false // as the batches of the set-up may have
	l.Until(t, "all requests are there", func() bool {
		m.loop.slow = false // on a busy machine a batch takes long
		for _, k := range l.Sinks {
			if len(k.Got) == 0 {
				return false
			}
		}
		return true
	})
	require.LessOrEqual(t, m.link.Mark().Requests-before, uint64(streams/corkFrames+2))
	for _, c := range dialed {
		want := fmt.Append(nil, "request ", c.id)
		got := make([]byte, len(want))
		_, err := io.ReadFull(c, got)
		require.NoError(t, err)
		require.Equal(t, string(want), string(got))
	}
}

// What other connections were answered before goes although the handler runs.
func TestAHandlerThatTakesLongKeepsBackNoAnswers(t *testing.T) {
	const streams, busy = 8, 5
	l, dialed := onHandLoop(t, overSoft, streams)
	l.Answer = true
	l.Sinks[0].Stream.m.loop.slow = false
	answered := make(chan error, 1)
	l.Sinks[busy].Then = func() {
		select { // ended by the answers, or the clock
		case err := <-answered:
			require.NoError(t, err)
		case <-time.After(soon):
			t.Error("the answers wait for the handler")
		}
	}
	for _, c := range dialed {
		_, err := c.Write([]byte("x"))
		require.NoError(t, err)
	}
	go func() {
		for _, c := range dialed[:busy] {
			if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
				answered <- err
				return
			}
		}
		answered <- nil
	}()
	l.Until(t, "all requests are there", func() bool { return len(l.Sinks[streams-1].Got) > 0 })
}

func TestAStreamThatIsClosedAsItIsAttachedDoesNotSayThatAllWasRead(t *testing.T) {
	l, dialed, accepted := dialsOnHandLoop(t)
	c, err := dialed.open()
	require.NoError(t, err)
	s := <-accepted.opened // sent by the engine
	for range 2 {          // pieces that do not fit into one chunk
		_, err := s.Write(make([]byte, 3000))
		require.NoError(t, err)
	}
	l.Until(t, "the data have come", func() bool {
		c.recv.mu.Lock()
		defer c.recv.mu.Unlock()
		return c.recv.flow.Buffered() == 6000
	})
	require.True(t, l.poller.Attach(c, func(ls *LoopStream) Sink {
		return &sink{Loop: &l.Loop, Stream: ls, Then: func() { ls.Close(false) }}
	}))
	require.Len(t, l.Sinks[0].Got, 3000)
	_, err = s.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

func TestFlushSendsWhatIsGathered(t *testing.T) {
	const streams = 6
	l, dialed := onHandLoop(t, overSoft, streams)
	l.Answer = true
	m := l.Sinks[0].Stream.m
	m.loop.slow = false
	gathered := func() int {
		m.out.mu.Lock()
		defer m.out.mu.Unlock()
		return m.link.Gathered()
	}
	last := l.Sinks[streams-1]
	last.Then = func() {
		last.Stream.Flush()
		require.Zero(t, gathered())
	}
	for _, c := range dialed {
		_, err := c.Write([]byte("x"))
		require.NoError(t, err)
	}
	l.Until(t, "all requests are there", func() bool { return len(last.Got) > 0 })
	for _, c := range dialed {
		_, err := io.ReadFull(c, make([]byte, 1))
		require.NoError(t, err)
	}
}

// The same of the streams of a loop: of those that were woken some are closed,
// and some reset by the peer before the loop comes to them.
func TestStreamsThatCloseWhenWokenLetTheOthersThrough(t *testing.T) {
	const streams, messages, size = 300, 16, 256
	l, dialed := onHandLoop(t, overNarrow, streams)
	m := l.Sinks[0].Stream.m
	byID := make(map[uint32]*Stream)
	for _, c := range dialed {
		byID[c.id] = c
	}
	const keeps, closes, isReset = 0, 1, 2
	fate := func(k *sink) int { return int(k.Stream.id) % 3 }

	message := make([]byte, size)
	left := make([]int, streams)
	// until nobody can send: all are in the queue, or wait for their window
	for i, k := range l.Sinks {
		left[i], k.Writables = messages*size, 0
		for {
			n, err := k.Stream.Write(message)
			require.NoError(t, err)
			left[i] -= n
			if n < size || left[i] <= 0 {
				break
			}
		}
	}
	m.out.mu.Lock()
	require.False(t, m.out.room.empty(), "they have to wait")
	m.out.mu.Unlock()

	var readers sync.WaitGroup
	for i, k := range l.Sinks {
		c := byID[k.Stream.id]
		if fate(k) == keeps {
			readers.Go(func() {
				n, err := io.CopyN(io.Discard, c, int64(messages*size))
				assert.NoError(t, err, "stream %d after %d bytes", i, n)
			})
		}
	}
	gone := make([]bool, streams)
	l.Until(t, "everything is sent", func() bool {
		all := true
		for i, k := range l.Sinks {
			if k.Writables > 0 && !gone[i] {
				switch fate(k) {
				case closes:
					k.Stream.Close(i%2 == 0)
					gone[i] = true
				case isReset: // Ended closes it here
					c := byID[k.Stream.id]
					c.Close(0)
					gone[i] = true
				}
			}
			for !gone[i] && left[i] > 0 && k.Writables > 0 && len(k.Errs) == 0 {
				n, err := k.Stream.Write(message[:min(size, left[i])])
				require.NoError(t, err)
				if left[i] -= n; n < size {
					k.Writables = 0
				}
			}
			all = all && (fate(k) != keeps || left[i] <= 0)
		}
		return all
	})
	hang.Start(t, readers.Wait)()
	l.Until(t, "the peers' resets are told", func() bool {
		for i, k := range l.Sinks {
			if gone[i] && fate(k) == isReset && len(k.Errs) == 0 {
				return false
			}
		}
		return true
	})
	for _, k := range l.Sinks {
		k.Stream.Close(true)
	}
	nobodyIsAwake(t, m)
}

// What streams send that had to wait goes as few messages, and all of it goes.
func TestStreamsThatHadToWaitShareMessages(t *testing.T) {
	const streams, messages, size = 1000, 8, 48
	l, dialed := onHandLoop(t, overNarrow, streams)
	m := l.Sinks[0].Stream.m
	byID := make(map[uint32]int)
	for i, k := range l.Sinks {
		byID[k.Stream.id] = i
	}
	written := make([]int, streams)
	l.GoOn = func(k *sink) {
		id := k.Stream.id
		var p [size]byte
		for i := byID[id]; written[i] < messages*size; {
			piece := p[:size-written[i]%size]
			copy(piece, patternOf(id, written[i], len(piece)))
			n, err := k.Stream.Write(piece)
			assert.NoError(t, err)
			written[i] += n
			if n < len(piece) {
				return // Writable comes again
			}
		}
	}
	before := m.link.Mark().Requests
	var readers sync.WaitGroup
	for _, c := range dialed {
		readers.Go(func() {
			got := make([]byte, messages*size)
			_, err := io.ReadFull(c, got)
			assert.NoError(t, err)
			assert.True(t, bytes.Equal(patternOf(c.id, 0, len(got)), got), "stream %d", c.id)
		})
	}
	for _, k := range l.Sinks {
		l.GoOn(k)
	}
	l.Until(t, "everything is sent", func() bool { return !slices.ContainsFunc(written, func(n int) bool { return n < messages*size }) })
	hang.Start(t, readers.Wait)()
	nobodyIsAwake(t, m)
	require.NotZero(t, m.Stats().CreditStalls)
	require.Less(t, m.link.Mark().Requests-before, uint64(streams*messages*3/4))
	t.Logf("%d frames in %d messages, of %d writes that waited", streams*messages, m.link.Mark().Requests-before, m.Stats().CreditStalls)
}

// A waker may have seen the loop, which has handed the session back when it goes on.
func TestWhoWakesAStreamOfALoopAlsoWakesAnOwnerThatSleeps(t *testing.T) {
	l, dialed, _ := dialsOnHandLoop(t)
	c, err := dialed.open() // and never attached
	require.NoError(t, err)
	l.poller.Close()
	c.send.wait.Begin()
	await := hang.Start(t, func() { dialed.pollLock.Wait(&c.send.wait) })
	hang.Eventually(t, "a sleep", func() bool { return dialed.pollLock.ThreadWaits.Load() > 0 || c.send.wait.Parked() })
	dialed.unblock(c)
	await()
}
