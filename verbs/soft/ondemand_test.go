//go:build linux

package soft_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft"
)

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
