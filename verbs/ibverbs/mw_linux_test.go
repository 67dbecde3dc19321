//go:build amd64 || arm64

package ibverbs_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/ibverbs"
)

// The library posts binds alone. Those around them keep their order, and none of them, whoever asks
// for no completion, keeps its slot in the queue.
func TestBindsStandAmongOtherRequests(t *testing.T) {
	l := newLoop(t, ibverbs.ProviderName)
	pd := l.qp.PD()
	if !pd.Context().Attr().Caps.Has(verbs.CapMemWindow) {
		t.Skip("the device has no memory windows")
	}
	windows := make([]*verbs.MW, 3)
	for typ := verbs.MWType1; typ <= verbs.MWType2; typ++ {
		var err error
		windows[typ], err = pd.AllocMW(typ)
		require.NoError(t, err)
	}
	bind := func(typ verbs.MWType) verbs.SendWR {
		mw := windows[typ]
		return verbs.SendWR{Opcode: verbs.OpBindMW, Bind: &verbs.Bind{
			MW: mw, RKey: mw.RKey()&^0xff | (mw.RKey()+1)&0xff, MR: l.mr, Addr: l.mr.Addr(), Length: 64, Access: verbs.AccessRemoteWrite,
		}}
	}
	write := l.writes(1)[0]
	write.Flags &^= verbs.SendSignaled
	patience := time.Now().Add(20 * time.Second)
	post := func(wrs ...verbs.SendWR) {
		for len(wrs) > 0 {
			n, err := l.qp.PostSend(wrs)
			if wrs = wrs[n:]; err != nil {
				require.ErrorIs(t, err, verbs.ErrQueueFull)
				require.True(t, time.Now().Before(patience), "the queue stays full")
			}
		}
	}
	for range 300 { // the queue has 128
		post(bind(verbs.MWType1))
	}
	for range 100 {
		post(write, bind(verbs.MWType1), write)
	}
	for i, typ := range []verbs.MWType{verbs.MWType1, verbs.MWType2} {
		post(write, bind(typ))
		through := l.writes(1)[0] // with a completion
		if through.RKey = windows[typ].RKey(); typ == verbs.MWType2 {
			through.RKey = bind(typ).Bind.RKey
		}
		through.Inline = [][]byte{{byte(i + 1)}}
		post(through)
		l.drain(t, 1)
		require.Equal(t, byte(i+1), l.mr.Bytes()[0])
	}
	n, err := l.cq.Poll(l.wcs[:])
	require.NoError(t, err)
	require.Zero(t, n, "completions that nobody asked for")
}

func TestWhatIsClosedIsNotPosted(t *testing.T) {
	l := newLoop(t, ibverbs.ProviderName)
	pd := l.qp.PD()
	attr := l.qp.Attr()
	attr.Type = verbs.QPTypeUD
	datagrams, err := pd.CreateQP(attr)
	require.NoError(t, err)
	gids, err := pd.Context().QueryGIDs(1)
	require.NoError(t, err)
	ah, err := pd.CreateAH(verbs.AddressVector{DGID: gids[0].GID, SGIDIndex: uint8(gids[0].Index), HopLimit: 1, IsGlobal: true, Port: 1})
	require.NoError(t, err)
	const states = verbs.QPAttrState
	require.NoError(t, datagrams.Modify(verbs.QPAttr{State: verbs.QPStateInit, Port: 1, QKey: 1},
		states|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrQKey))
	require.NoError(t, datagrams.Modify(verbs.QPAttr{State: verbs.QPStateRTR}, states))
	require.NoError(t, datagrams.Modify(verbs.QPAttr{State: verbs.QPStateRTS}, states|verbs.QPAttrSQPSN))
	require.NoError(t, ah.Close())
	message := verbs.SendWR{Opcode: verbs.OpSend, Datagram: &verbs.Datagram{AH: ah, QPN: 1, QKey: 1}}
	n, err := datagrams.PostSend([]verbs.SendWR{message})
	require.ErrorIs(t, err, verbs.ErrClosed)
	require.Zero(t, n)

	if !pd.Context().Attr().Caps.Has(verbs.CapMemWindow) {
		return
	}
	for _, typ := range []verbs.MWType{verbs.MWType1, verbs.MWType2} {
		mw, err := pd.AllocMW(typ)
		require.NoError(t, err)
		bind := verbs.Bind{MW: mw, RKey: mw.RKey() + 1, MR: l.mr, Addr: l.mr.Addr(), Length: 64, Access: verbs.AccessRemoteWrite}
		require.NoError(t, mw.Close())
		n, err := l.qp.PostSend([]verbs.SendWR{l.writes(1)[0], {Opcode: verbs.OpBindMW, Bind: &bind}})
		require.ErrorIs(t, err, verbs.ErrClosed)
		require.Equal(t, 1, n)
		l.drain(t, 1)
	}
}
