package mux

import (
	"errors"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
)

// What the dialing side has opened before it knows that it shall open no more, the other
// side gets before the answer, and nothing after it.
func TestEachStreamComesBeforeTheAnswerToGoAway(t *testing.T) {
	for _, k := range []carrier{overSoft, overNarrow, {device: wireLike[0]}} {
		for range 10 {
			dialed, accepted := k.pair(t)
			var opened atomic.Int64
			var work sync.WaitGroup
			begun := make(chan struct{}, 4)
			for range 4 {
				work.Go(func() {
					for range mostStreams / 4 {
						_, err := dialed.open()
						if errors.Is(err, ErrNoSlot) {
							runtime.Gosched()
							continue
						}
						if err != nil {
							require.ErrorIs(t, err, net.ErrClosed)
							break
						}
						opened.Add(1)
						select {
						case begun <- struct{}{}:
						default:
						}
					}
				})
			}
			<-begun
			accepted.Drain()
			<-accepted.left // ended by the answer
			came := len(accepted.opened)
			work.Wait()
			require.EqualValues(t, opened.Load(), came)
			require.Len(t, accepted.opened, came)
			_, err := dialed.open()
			require.ErrorIs(t, err, net.ErrClosed)
			require.NoError(t, accepted.Err(), "the session has ended with streams on it")
			dialed.Fail(net.ErrClosed)
			<-accepted.Done()
		}
	}
}

// A session without streams does not end before the answer, but then.
func TestADrainedSessionWithoutStreamsEndsWithTheAnswer(t *testing.T) {
	dialed, accepted := overSoft.pair(t)
	st, err := dialed.open()
	require.NoError(t, err)
	far := <-accepted.opened
	accepted.Drain()
	require.NoError(t, st.Close(-1))
	require.NoError(t, far.Close(-1))
	<-accepted.Done()
	require.ErrorIs(t, accepted.Err(), ErrIdle)
}

// A peer that does not answer keeps it no longer than Retire.
func TestRetireEndsADrainThatHasNoAnswer(t *testing.T) {
	_, accepted := overSoft.pair(t)
	accepted.draining.Store(true) // as by Drain, whose GO_AWAY the peer does not answer
	accepted.goingAway.Store(true)
	accepted.Left()
	require.NoError(t, accepted.Err())
	accepted.Retire()
	<-accepted.Done()
	require.ErrorIs(t, accepted.Err(), ErrIdle)
}

// The end of a stream is noted before it is sent. A session that is to end with its last stream does
// not end in between.
func TestASessionDoesNotEndBeforeItsLastFinIsSent(t *testing.T) {
	for _, end := range []struct {
		name string
		end  func(m *Mux)
	}{
		{"Retire", func(m *Mux) { m.Retire() }},
		{"GO_AWAY", func(m *Mux) { m.PeerLeaves() }},
		{"timer", func(m *Mux) { m.ExpireAfter(0) }},
	} {
		t.Run(end.name, func(t *testing.T) {
			for _, k := range []carrier{overSoft, {device: wireLike[0]}} {
				dialed, accepted := k.pair(t)
				c, s := open(t, dialed, accepted)
				_, err := s.Write([]byte("all"))
				require.NoError(t, err)
				out := &accepted.out
				out.mu.Lock()
				require.True(t, s.note(endFinSent|endClosed), "the last") // as sendNext
				await := hang.Start(t, func() { end.end(accepted.Mux) })
				time.Sleep(10 * time.Millisecond)
				err = accepted.Err()
				h := link.Header{Stream: s.id, Kind: FrameFin, Flags: FlagClosed}
				require.NoError(t, out.link.Send(h, position(s.send.window.Sent(), 0)))
				out.mu.Unlock()
				require.NoError(t, err, "the session has ended")
				await()
				p := make([]byte, 4)
				n, err := c.Read(p)
				require.NoError(t, err)
				require.Equal(t, "all", string(p[:n]))
				_, err = c.Read(p)
				require.Equal(t, io.EOF, err)
			}
		})
	}
}

// A peer that leaves again and again does not put off the end of a session without streams.
func TestTheFirstGoAwayCounts(t *testing.T) {
	dialed, accepted := overSoft.pair(t)
	defer stopPolling(t, accepted.Mux)() // the answer would end it
	ends := func() time.Duration {
		dialed.idle.mu.Lock()
		defer dialed.idle.mu.Unlock()
		return dialed.idle.at // 0 when it has passed
	}
	dialed.PeerLeaves()
	first := ends()
	dialed.PeerLeaves()
	require.LessOrEqual(t, ends(), first)
}

// Who waits for an address is to look for another session at once.
func TestWhoWaitsForASlotLearnsOfGoAway(t *testing.T) {
	dialed, accepted := overSoft.pair(t)
	defer stopPolling(t, accepted.Mux)() // no addresses come
	var err error
	for err == nil {
		_, err = dialed.open()
	}
	require.ErrorIs(t, err, ErrNoSlot)
	freed := dialed.AwaitSlot()
	dialed.PeerLeaves()
	hang.Receive(t, freed, "another answer")
	_, err = dialed.open()
	require.ErrorIs(t, err, net.ErrClosed)
}
