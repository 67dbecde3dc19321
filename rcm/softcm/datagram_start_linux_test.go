package softcm

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/cmtest"
	"github.com/seed-b9b531af/ramjet/rcm/internal/handshake"
	"github.com/seed-b9b531af/ramjet/verbs"
)

// One QP is the answer to all who ask, also to those who ask while it begins.
func TestTwoAnswersBeginOneQP(t *testing.T) {
	addr := cmtest.At("127.0.0.1", cmtest.FreePort(t))
	f := onSoft()
	l := f.MustListenDatagram(t, addr, rcm.ListenConfig{})
	var asks [2]speaker
	var requests [2]rcm.DatagramRequest
	for i := range asks {
		asks[i] = askAt(t, addr)
		asks[i].say(lookupOf(addr))
		var err error
		requests[i], err = l.Accept(cmtest.Within(t))
		require.NoError(t, err)
	}
	qp := f.NewDatagrams(t).QP
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
