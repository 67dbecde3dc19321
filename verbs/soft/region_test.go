//go:build linux

package soft_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft"
	"github.com/stretchr/testify/require"
)

// another is a second QP on everything that an end has.
func another(t testing.TB, e *end) *end {
	t.Helper()
	second := *e
	var err error
	second.qp, err = e.pd.CreateQP(verbs.QPInitAttr{Type: verbs.QPTypeRC, SendCQ: e.send, RecvCQ: e.recv, Cap: usual.cap})
	require.NoError(t, err)
	return &second
}

func connect(t testing.TB, a, b *end) {
	t.Helper()
	forA, err := b.address()
	require.NoError(t, err)
	forB, err := a.address()
	require.NoError(t, err)
	require.NoError(t, a.connect(forA))
	require.NoError(t, b.connect(forB))
}

// writeTo writes to a region of the peer and returns how it went.
func (e *end) writeTo(t testing.TB, mr *verbs.MR) verbs.WCStatus {
	t.Helper()
	_, err := e.qp.PostSend([]verbs.SendWR{{
		Opcode: verbs.OpWrite, Flags: verbs.SendInline | verbs.SendSignaled, Inline: [][]byte{{1}}, RemoteAddr: mr.Addr(), RKey: mr.RKey(),
	}})
	require.NoError(t, err)
	return poll(t, e.send, 1)[0].Status
}

// A peer with the right to write may write what it likes, and harms only what
// is in the region.
func TestAPeerCannotTakeAKeyFromOthers(t *testing.T) {
	soft.PairAsStrangers(t)
	owner, hostile, honest := newEnd(t, usual), newEnd(t, usual), newEnd(t, usual)
	connect(t, owner, hostile)
	connect(t, another(t, owner), honest)
	require.Equal(t, verbs.WCSuccess, hostile.writeTo(t, owner.mr))
	require.Equal(t, verbs.WCSuccess, honest.writeTo(t, owner.mr))
	soft.Scribble(hostile.qp)
	require.Equal(t, verbs.WCSuccess, honest.writeTo(t, owner.mr))
	require.NoError(t, owner.mr.Close())
	require.Equal(t, verbs.WCRemAccessErr, honest.writeTo(t, owner.mr))
}

// Of a region whose key was taken away the peer keeps nothing.
func TestWhatHasNoKeyAnyMoreIsNotKept(t *testing.T) {
	soft.PairAsStrangers(t)
	soft.CheckLeaks(t)
	a, b := newPair(t, usual)
	require.Equal(t, verbs.WCSuccess, a.writeTo(t, b.mr))
	require.Equal(t, 1, soft.RegionsKnown(a.qp))
	require.Equal(t, verbs.WCSuccess, b.post(t, verbs.SendWR{Opcode: verbs.OpLocalInv, InvalidateRKey: b.mr.RKey()}))
	require.Equal(t, verbs.WCRemAccessErr, a.writeTo(t, b.mr))
	require.Zero(t, soft.RegionsKnown(a.qp))
}

// A key answers for its region alone, however many there are, and the places
// of former ones are used again.
func TestKeysOfManyRegionsAreToldApart(t *testing.T) {
	soft.PairAsStrangers(t)
	soft.CheckLeaks(t)
	a, b := newPair(t, usual)
	const many = 1000 // more than fit into the first page
	var mrs [many]*verbs.MR
	for i := range mrs {
		var err error
		mrs[i], err = b.pd.AllocMR(1, everyRight, verbs.MROptions{})
		require.NoError(t, err)
		require.Equal(t, verbs.WCSuccess, a.writeTo(t, mrs[i]))
	}
	require.GreaterOrEqual(t, soft.RegionsGiven(b.qp), many)
	for i := range mrs {
		if i != many/2 {
			require.NoError(t, mrs[i].Close())
		}
	}
	require.Equal(t, 1, soft.RegionsGiven(b.qp), "what is gone is not kept")
	for range many {
		mr, err := b.pd.AllocMR(1, everyRight, verbs.MROptions{})
		require.NoError(t, err)
		require.Equal(t, verbs.WCSuccess, a.writeTo(t, mr))
		require.NoError(t, mr.Close())
	}
	require.Equal(t, verbs.WCSuccess, a.writeTo(t, mrs[many/2]))
	require.Equal(t, verbs.WCRemAccessErr, a.writeTo(t, mrs[0]))
}

// Nothing may count on pages of 4096 bytes: some machines have larger ones.
func TestRegionsAndSegmentsAreWholePagesOfAnySize(t *testing.T) {
	for _, size := range []int{4096, 16384, 65536} {
		for name, setUp := range map[string]func(testing.TB){"in one process": func(testing.TB) {}, "between strangers": soft.PairAsStrangers} {
			t.Run(fmt.Sprint(size, " bytes ", name), func(t *testing.T) {
				soft.PagesOf(t, size)
				setUp(t)
				a, b := newPair(t, usual)
				mr, err := b.pd.AllocMR(size+1, everyRight, verbs.MROptions{})
				require.NoError(t, err)
				require.Equal(t, verbs.WCSuccess, a.writeTo(t, mr))
			})
		}
	}
}

// Memory comes on use, and with advice: how much there is shows in the file behind the region.
func TestMemoryOnDemandComesOnUseAndWithAdvice(t *testing.T) {
	e := newEnd(t, usual)
	const length = 8 << 20
	mr, err := e.pd.AllocMR(length, verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessOnDemand, verbs.MROptions{})
	require.NoError(t, err)
	require.Less(t, soft.MemoryOf(t, e.qp, mr), 1<<20)
	require.NoError(t, e.pd.AdviseMR(verbs.AdvicePrefetchNoFault, []verbs.SGE{mr.SGE(0, length)}))
	require.Less(t, soft.MemoryOf(t, e.qp, mr), 1<<20)
	require.NoError(t, e.pd.AdviseMR(verbs.AdvicePrefetchWrite, []verbs.SGE{mr.SGE(1<<20, 1<<20)}))
	require.GreaterOrEqual(t, soft.MemoryOf(t, e.qp, mr), 1<<20)
	require.NoError(t, e.pd.AdviseMR(verbs.AdvicePrefetch, []verbs.SGE{mr.SGE(0, length)}))
	require.Equal(t, length, soft.MemoryOf(t, e.qp, mr))
}

// A region is not unmapped while somebody gives it memory.
func TestARegionMayBeClosedWhileAdviceIsGiven(t *testing.T) {
	e := newEnd(t, usual)
	for range 20 {
		mr, err := e.pd.AllocMR(4<<20, verbs.AccessLocalWrite|verbs.AccessOnDemand, verbs.MROptions{})
		require.NoError(t, err)
		all := []verbs.SGE{mr.SGE(0, 4<<20)}
		var advisers sync.WaitGroup
		for range 3 {
			advisers.Go(func() {
				if err := e.pd.AdviseMR(verbs.AdvicePrefetchWrite, all); err != nil {
					require.ErrorIs(t, err, verbs.ErrInvalid, "it is closed")
				}
			})
		}
		require.NoError(t, mr.Close())
		advisers.Wait() // ends with the region, or with its memory
	}
}

func TestAddressesOfAZeroBasedRegionCountFromZero(t *testing.T) {
	for name, pair := range map[string]func(testing.TB){"one process": func(testing.TB) {}, "two processes": soft.PairAsStrangers} {
		t.Run(name, func(t *testing.T) {
			pair(t)
			a, b := newPair(t, usual)
			mr, err := b.pd.AllocMR(100, everyRight|verbs.AccessZeroBased, verbs.MROptions{})
			require.NoError(t, err)
			require.Zero(t, mr.Addr())
			_, err = a.qp.PostSend([]verbs.SendWR{
				{Opcode: verbs.OpWrite, Flags: verbs.SendInline | verbs.SendSignaled, Inline: [][]byte{{1}}, RemoteAddr: 99, RKey: mr.RKey()},
				{Opcode: verbs.OpWrite, Flags: verbs.SendInline | verbs.SendSignaled, Inline: [][]byte{{1}}, RemoteAddr: 100, RKey: mr.RKey()},
			})
			require.NoError(t, err)
			wcs := poll(t, a.send, 2)
			require.Equal(t, verbs.WCSuccess, wcs[0].Status)
			require.Equal(t, verbs.WCRemAccessErr, wcs[1].Status)
			require.EqualValues(t, 1, mr.Bytes()[99])
		})
	}
}
