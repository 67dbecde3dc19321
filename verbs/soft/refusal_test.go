//go:build linux

package soft_test

import (
	"testing"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

// A request with several faults fails for the first of these: the peer's QP does not let the
// operation in, its own memory may not be used so, the peer's has no such key.
func TestWhatARequestIsRefusedForFirst(t *testing.T) {
	const all = everyRight&^verbs.AccessLocalWrite | verbs.AccessFlushGlobal
	for _, c := range []struct {
		op    verbs.Opcode
		right verbs.Access // of the peer's QP
		local verbs.Access // to the memory of the request, which the wrong one has not; 0: any memory will do
	}{
		{verbs.OpWrite, verbs.AccessRemoteWrite, 0},
		{verbs.OpWriteWithImm, verbs.AccessRemoteWrite, 0},
		{verbs.OpAtomicWrite, verbs.AccessRemoteWrite, 0},
		{verbs.OpRead, verbs.AccessRemoteRead, verbs.AccessLocalWrite},
		{verbs.OpCompareSwap, verbs.AccessRemoteAtomic, verbs.AccessLocalWrite},
		{verbs.OpFetchAdd, verbs.AccessRemoteAtomic, verbs.AccessLocalWrite},
		{verbs.OpFlush, verbs.AccessFlushGlobal, 0},
	} {
		t.Run(c.op.String(), func(t *testing.T) {
			status := func(access verbs.Access, wrongMemory, wrongKey bool) verbs.WCStatus {
				a, b := newPair(t, usual)
				require.NoError(t, b.qp.Modify(verbs.QPAttr{State: verbs.QPStateRTS, Access: access}, verbs.QPAttrState|verbs.QPAttrAccess))
				b.postRecv(t)
				target, err := b.pd.AllocMR(4096, verbs.AccessLocalWrite|all, verbs.MROptions{})
				require.NoError(t, err)
				wr := verbs.SendWR{Opcode: c.op, RemoteAddr: target.Addr(), RKey: target.RKey()}
				switch c.op {
				case verbs.OpFlush:
					wr.Flush = &verbs.Flush{Type: verbs.FlushGlobal, Length: 8}
				case verbs.OpAtomicWrite:
					wr.Flags, wr.Inline = verbs.SendInline, [][]byte{make([]byte, 8)}
				default:
					memory, err := a.pd.AllocMR(4096, c.local, verbs.MROptions{})
					require.NoError(t, err)
					wr.SGL = []verbs.SGE{memory.SGE(0, 8)}
				}
				if wrongMemory && len(wr.SGL) > 0 {
					wrong, err := a.pd.AllocMR(4096, 0, verbs.MROptions{})
					require.NoError(t, err)
					wr.SGL[0] = wrong.SGE(0, 8)
					if c.local == 0 {
						wr.SGL[0].Addr-- // before its beginning
					}
				}
				if wrongKey {
					wr.RKey ^= 0x5555
				}
				return a.post(t, wr)
			}
			require.Equal(t, verbs.WCRemInvReqErr, status(all&^c.right, true, true))
			// they have no memory of their own
			if c.op != verbs.OpFlush && c.op != verbs.OpAtomicWrite {
				require.Equal(t, verbs.WCLocProtErr, status(all, true, true))
			}
			require.Equal(t, verbs.WCRemAccessErr, status(all, false, true))
			require.Equal(t, verbs.WCSuccess, status(all, false, false))
		})
	}
}
