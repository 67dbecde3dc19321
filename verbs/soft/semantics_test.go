//go:build linux

package soft_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft"
	"github.com/seed-b9b531af/ramjet/verbs/verbstest"
	"github.com/stretchr/testify/require"
)

// Two QPs of one process pair directly, those of two processes over a socket.
// The tests must not see a difference.

func TestSemanticsWithinOneProcess(t *testing.T) {
	verbstest.Run(t, openPair)
}

func TestSemanticsBetweenStrangers(t *testing.T) {
	verbstest.Run(t, func(t testing.TB) verbstest.Pair {
		soft.PairAsStrangers(t)
		return openPair(t)
	})
}

func TestSemanticsWithinOneProcessSingleThreaded(t *testing.T) {
	verbstest.Run(t, singleThreaded)
}

func TestSemanticsBetweenStrangersSingleThreaded(t *testing.T) {
	verbstest.Run(t, func(t testing.TB) verbstest.Pair {
		soft.PairAsStrangers(t)
		return singleThreaded(t)
	})
}

func singleThreaded(t testing.TB) verbstest.Pair {
	p := openPair(t)
	p.SingleThreaded = true
	return p
}

func openPair(t testing.TB) verbstest.Pair {
	open := func() *verbs.Context {
		ctx, err := verbs.Open(soft.DeviceName)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, ctx.Close()) })
		return ctx
	}
	return verbstest.Pair{A: open(), B: open()}
}

func TestAQPWithAnSRQThatFailsSaysThatItTakesNoMoreReceives(t *testing.T) {
	for name, service := range map[string]verbs.QPType{"RC": verbs.QPTypeRC, "UD": verbs.QPTypeUD} {
		t.Run(name, func(t *testing.T) {
			shared := usual
			shared.srq = true
			e := newEnd(t, shared)
			qp, err := e.pd.CreateQP(verbs.QPInitAttr{Type: service, SendCQ: e.send, RecvCQ: e.recv, SRQ: e.srq, Cap: shared.cap})
			require.NoError(t, err)
			attr := verbs.QPAttr{State: verbs.QPStateInit, Port: 1}
			kind := verbs.QPAttrAccess
			if service == verbs.QPTypeUD {
				kind = verbs.QPAttrQKey
			}
			require.NoError(t, qp.Modify(attr, verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|kind))
			require.NoError(t, qp.Fail())
			defer time.AfterFunc(10*time.Second, func() { _ = e.ctx.Close() }).Stop() // if there is no event
			ev, err := e.ctx.NextEvent()
			require.NoError(t, err)
			require.Equal(t, verbs.AsyncEvent{Type: verbs.EventLastWQEReached, QPN: qp.Num()}, ev)
		})
	}
}

// A device makes as many objects as it says, and then has no room.
func TestADeviceHasLimits(t *testing.T) {
	e := newEnd(t, usual)
	attr := e.ctx.Attr()
	for kind, c := range map[string]struct {
		most int
		make func() error
	}{
		"PD":  {attr.MaxPD, func() error { _, err := e.ctx.AllocPD(); return err }},
		"CQ":  {attr.MaxCQ, func() error { _, err := e.ctx.CreateCQ(verbs.CQAttr{CQE: 1}, nil); return err }},
		"SRQ": {attr.MaxSRQ, func() error { _, err := e.pd.CreateSRQ(verbs.SRQAttr{MaxWR: 1}); return err }},
	} {
		n := 0
		var err error
		for err == nil && n <= c.most {
			err = c.make()
			n++
		}
		require.ErrorIs(t, err, syscall.ENOMEM, kind)
	}
}

// Of the memory of a receive only what the message needs is looked at.
func TestAMessageOfNothingNeedsNoMemory(t *testing.T) {
	a, b := newPair(t, usual)
	_, err := b.qp.PostRecv([]verbs.RecvWR{{SGL: []verbs.SGE{{Addr: 1, Length: 8, LKey: b.mr.LKey() + 1}}}})
	require.NoError(t, err)
	_, err = a.qp.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend}})
	require.NoError(t, err)
	require.Equal(t, verbs.WCSuccess, poll(t, b.recv, 1)[0].Status)
}
