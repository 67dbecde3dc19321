//go:build linux

package soft

import (
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/protocol"
	"github.com/stretchr/testify/require"
)

func TestSendQueueGivesUpWhatOnlyTheBeginningNeeded(t *testing.T) {
	var s sendQueue
	data := [][]byte{{0}}
	fill := func() {
		for id := range uint64(3 * shortQueue) {
			data[0][0] = byte(id)
			s.add(&verbs.SendWR{ID: id, Flags: verbs.SendInline, Inline: data}, 100)
		}
	}
	empty := func() {
		for id := range uint64(3 * shortQueue) {
			if wr := s.oldest().wr; wr.ID != id || wr.Inline[0][0] != byte(id) {
				t.Errorf("request %d is %+v", id, wr)
			}
			s.drop()
		}
	}
	fill()
	empty()
	require.Nil(t, s.ring)
	fill()
	empty()
	require.Zero(t, testing.AllocsPerRun(10, func() { fill(); empty() }), "a queue that is used again")
}

func TestSilenceCountsOnlyTimeInWhichThisProcessRan(t *testing.T) {
	const budget = silenceSteps * time.Second
	now := time.Now()
	var s silence
	require.Equal(t, time.Second, s.left(now, budget))
	require.Equal(t, time.Second, s.left(now, budget), "asked twice")
	now = now.Add(time.Second / 4)
	require.Equal(t, 3*time.Second/4, s.left(now, budget))
	now = now.Add(time.Hour)
	require.Equal(t, time.Second, s.left(now, budget), "an hour is a step")
	for range silenceSteps - 2 {
		now = now.Add(time.Second)
		require.Equal(t, time.Second, s.left(now, budget))
	}
	now = now.Add(time.Second)
	require.Zero(t, s.left(now, budget))
}

// A post may find out by itself that the retries of an earlier request are at their end. Then what is
// posted is flushed.
func TestAPostThatFindsTheRetriesAtTheirEndIsFlushed(t *testing.T) {
	v := newVictim(t, false)
	v.q.sendMu.Lock()
	v.q.out.srq, v.q.open, v.q.attr.RNRRetry = true, false, 0
	v.q.sendMu.Unlock()
	post := func(id uint64) {
		n, err := v.q.PostSend([]verbs.SendWR{{ID: id, Opcode: verbs.OpSend, Flags: verbs.SendSignaled}})
		require.NoError(t, err)
		require.Equal(t, 1, n)
	}
	post(1)
	v.q.sendMu.Lock()
	v.q.stopTimer() // which would look too
	v.peer.Header.Starved.Store(1)
	v.q.sendMu.Unlock()
	post(2)
	wcs := make([]verbs.WC, 3)
	n, err := v.send.Poll(wcs)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.Equal(t, verbs.WCRNRRetryExcErr, wcs[0].Status)
	require.EqualValues(t, 2, wcs[1].ID)
	require.Equal(t, verbs.WCWRFlushErr, wcs[1].Status)
	require.Zero(t, v.peer.Ring[1].Seq.Load(), "it was sent all the same")
}

// A peer may end, or refuse a message, before it has told what it took.
func TestWhatThePeerHasTakenSucceedsThoughTheQPFails(t *testing.T) {
	v := newVictim(t, false)
	v.q.sendMu.Lock()
	v.q.out.srq, v.q.open = true, false
	v.q.sendMu.Unlock()
	wrs := make([]verbs.SendWR, 3)
	for i := range wrs {
		wrs[i] = verbs.SendWR{ID: uint64(i), Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
	}
	_, err := v.q.PostSend(wrs)
	require.NoError(t, err)
	v.q.sendMu.Lock()
	v.q.stopTimer() // which would look
	v.peer.Header.Consumed.Store(1)
	v.q.sendMu.Unlock()
	v.q.peerFault(v, protocol.FaultReceiveTooShort)
	wcs := make([]verbs.WC, 4)
	n, err := v.send.Poll(wcs)
	require.NoError(t, err)
	require.Equal(t, 3, n)
	for i, status := range []verbs.WCStatus{verbs.WCSuccess, verbs.WCRemInvReqErr, verbs.WCWRFlushErr} {
		require.Equal(t, status, wcs[i].Status, "request %d", i)
	}
}

// askedLink tells how many retries were counted each time that the peer is asked to look at its ring.
type askedLink struct {
	*victim
	tries chan int
}

func (l *askedLink) drain() {
	l.q.sendMu.Lock()
	tries := l.q.acks.tries
	l.q.sendMu.Unlock()
	select {
	case l.tries <- tries:
	default: // of those that matter all have come
	}
}

// A retry counts when the peer was asked to look behind the RNR timer and had time for it, however late
// our timer is. It is not asked all the time: nobody may post a receive for long.
func TestARetryCountsWhenThePeerCouldLook(t *testing.T) {
	v := newVictim(t, false)
	want := []int{1, 1, 2, 2, 3, 3}
	l := &askedLink{v, make(chan int, len(want))}
	v.q.sendMu.Lock()
	v.q.link, v.q.out.srq, v.q.open, v.q.attr.RNRRetry = l, true, false, 7
	v.q.sendMu.Unlock()
	v.peer.Header.Gate.Store(protocol.GateOpen | 20<<protocol.GateRNR) // 10 ms
	v.peer.Header.Starved.Store(1)
	_, err := v.q.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend}})
	require.NoError(t, err)
	v.q.sendMu.Lock()
	v.q.stopTimer()
	v.q.retire()
	v.q.acks.due = time.Now().Add(-time.Second) // we did not run
	v.q.sendMu.Unlock()
	go v.q.onTimer()
	for _, tries := range want {
		require.Equal(t, tries, <-l.tries)
	}
}
