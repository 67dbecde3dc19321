package softcm

import (
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/cmtest"
	"github.com/seed-b9b531af/ramjet/rcm/internal/handshake"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

func datagramQP(t *testing.T) *verbs.QP {
	t.Helper()
	dev, err := verbs.Open(DefaultDevice)
	require.NoError(t, err)
	t.Cleanup(func() { dev.Close() })
	pd, err := dev.AllocPD()
	require.NoError(t, err)
	cq, err := dev.CreateCQ(verbs.CQAttr{CQE: 16}, nil)
	require.NoError(t, err)
	qp, err := pd.CreateQP(verbs.QPInitAttr{Type: verbs.QPTypeUD, SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}})
	require.NoError(t, err)
	return qp
}

// One QP is the answer to all who ask, also to those who ask while it begins.
func TestTwoAnswersBeginOneQP(t *testing.T) {
	addr := cmtest.At("127.0.0.1", cmtest.FreePort(t))
	l := onSoft().MustListenDatagram(t, addr, rcm.ListenConfig{})
	var asks [2]speaker
	var requests [2]rcm.DatagramRequest
	for i := range asks {
		asks[i] = askAt(t, addr)
		asks[i].say(lookupOf(addr))
		var err error
		requests[i], err = l.Accept(cmtest.Within(t))
		require.NoError(t, err)
	}
	qp := datagramQP(t)
	second := make(chan error, 1)
	err := requests[0].Accept(qp, rcm.DatagramParam{Prepare: func(*verbs.QP) error {
		go func() { second <- requests[1].Accept(qp, rcm.DatagramParam{}) }()
		time.Sleep(50 * time.Millisecond)
		return nil
	}})
	require.NoError(t, err)
	require.NoError(t, cmtest.Await(t, second))
	for _, s := range asks {
		require.Equal(t, handshake.KindFound, s.read().Kind)
	}
}
