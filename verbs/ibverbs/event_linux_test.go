//go:build amd64 || arm64

package ibverbs

import (
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
)

// connectToItself takes a QP to RTS.
func (s *single) connectToItself(t *testing.T, qp *verbs.QP) {
	t.Helper()
	ctx := s.pd.Context()
	gids, err := ctx.QueryGIDs(1)
	require.NoError(t, err)
	gid, _ := rdmahost.PreferredGID(gids, netip.Addr{}) // of InfiniBand the first
	port, err := ctx.QueryPort(1)
	require.NoError(t, err)
	const access = verbs.AccessLocalWrite | verbs.AccessRemoteWrite
	for _, step := range []struct {
		attr verbs.QPAttr
		mask verbs.QPAttrMask
	}{
		{verbs.QPAttr{State: verbs.QPStateInit, Port: 1, Access: access}, verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrAccess},
		{
			verbs.QPAttr{
				State: verbs.QPStateRTR, PathMTU: verbs.MTU1024, DestQPN: qp.Num(), MaxDestRdAtomic: 1, MinRNRTimer: 1,
				AV: verbs.AddressVector{DGID: gid.GID, SGIDIndex: uint8(gid.Index), HopLimit: 64, IsGlobal: true, DLID: port.LID, Port: 1},
			}, verbs.QPAttrAV | verbs.QPAttrPathMTU | verbs.QPAttrDestQPN | verbs.QPAttrRQPSN | verbs.QPAttrMaxDestRdAtomic | verbs.QPAttrMinRNRTimer,
		},
		{
			verbs.QPAttr{State: verbs.QPStateRTS, Timeout: 14, RetryCount: 7, RNRRetry: 7, MaxRdAtomic: 1},
			verbs.QPAttrTimeout | verbs.QPAttrRetryCount | verbs.QPAttrRNRRetry | verbs.QPAttrSQPSN | verbs.QPAttrMaxRdAtomic,
		},
	} {
		require.NoError(t, qp.Modify(step.attr, step.mask|verbs.QPAttrState))
	}
}

// An event of a QP that has failed may be read when the QP is another connection's.
func TestAnEventOfBeforeRESETDoesNotEndAQP(t *testing.T) {
	s := openSingle(t)
	made := s.createQP(t, false)
	mr, err := s.pd.AllocMR(8, verbs.AccessLocalWrite|verbs.AccessRemoteWrite, verbs.MROptions{})
	require.NoError(t, err)
	s.connectToItself(t, made)

	ctx := s.pd.Context()
	defer time.AfterFunc(20*time.Second, func() { ctx.Close() }).Stop() // ends NextEvent
	s.dev.mu.Lock()                                                     // for which the event waits, when it was read
	handle := sync.OnceFunc(s.dev.mu.Unlock)
	defer handle()
	_, err = made.PostSend([]verbs.SendWR{{
		Opcode: verbs.OpWrite, Flags: verbs.SendSignaled, SGL: []verbs.SGE{mr.SGE(0, 8)}, RemoteAddr: mr.Addr(), RKey: mr.RKey() ^ 0x100,
	}})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		attr, err := made.Query()
		return err == nil && attr.State == verbs.QPStateErr
	}, 10*time.Second, time.Millisecond)
	require.NoError(t, made.Modify(verbs.QPAttr{State: verbs.QPStateReset}, verbs.QPAttrState))
	handle()
	ev, err := ctx.NextEvent()
	require.NoError(t, err)
	require.Equal(t, verbs.AsyncEvent{Type: verbs.EventQPAccessErr, QPN: made.Num()}, ev)
	require.False(t, made.Driver().(*qp).failed.Load())
}
