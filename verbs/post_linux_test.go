package verbs_test

import (
	"testing"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

func inlineSend(id uint64, payload ...byte) verbs.SendWR {
	return verbs.SendWR{ID: id, Opcode: verbs.OpSendWithImm, Flags: verbs.SendInline | verbs.SendSignaled, Inline: [][]byte{payload}}
}

func TestPostSendTakesWhatComesBeforeTheBadRequest(t *testing.T) {
	b := newBench(t)
	qp, peer := b.connected(t)
	_, err := peer.PostRecv(make([]verbs.RecvWR, 4))
	require.NoError(t, err)
	for _, c := range []struct {
		name string
		bad  verbs.SendWR
		want string
	}{
		{"unknown opcode", verbs.SendWR{Opcode: 200}, "opcode 200"},
		{"opcode of another kind", verbs.SendWR{Opcode: 10}, "opcode 10"},
		{"too much inline", inlineSend(0, make([]byte, qp.Attr().Cap.MaxInline+1)...), "inline bytes"},
		{"inline READ", verbs.SendWR{Opcode: verbs.OpRead, Flags: verbs.SendInline}, "READ cannot be inline"},
		{"inline atomic", verbs.SendWR{Opcode: verbs.OpFetchAdd, Flags: verbs.SendInline}, "FETCH_AND_ADD cannot be inline"},
		{"too many SGEs", verbs.SendWR{Opcode: verbs.OpSend, SGL: make([]verbs.SGE, qp.Attr().Cap.MaxSendSGE+1)}, "SGEs"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n, err := qp.PostSend([]verbs.SendWR{c.bad, inlineSend(1)})
			require.ErrorIs(t, err, verbs.ErrInvalid)
			require.ErrorContains(t, err, c.want)
			require.Zero(t, n)
		})
	}
	n, err := qp.PostSend([]verbs.SendWR{inlineSend(1), inlineSend(2), {Opcode: 200}, inlineSend(3)})
	require.ErrorIs(t, err, verbs.ErrInvalid)
	require.Equal(t, 2, n)
	sent := 0
	for _, wc := range b.poll(t, 4) { // two sent, two received
		require.NoError(t, wc.Err())
		if wc.Opcode == verbs.WCSend {
			sent++
			require.EqualValues(t, sent, wc.ID)
		}
	}
	require.Equal(t, 2, sent, "the third was not looked at")
	n, err = qp.PostSend(nil)
	require.NoError(t, err)
	require.Zero(t, n)
}

func TestAFullQueueTakesWhatFits(t *testing.T) {
	b := newBench(t)
	_, peer := b.connected(t)
	room := peer.Attr().Cap.MaxRecvWR
	n, err := peer.PostRecv(make([]verbs.RecvWR, room+3))
	require.ErrorIs(t, err, verbs.ErrQueueFull)
	require.Equal(t, room, n)
}

func TestPostRecvTakesWhatComesBeforeTheBadRequest(t *testing.T) {
	b := newBench(t)
	_, peer := b.connected(t)
	n, err := peer.PostRecv([]verbs.RecvWR{{}, {SGL: make([]verbs.SGE, 100)}, {}})
	require.ErrorIs(t, err, verbs.ErrInvalid)
	require.Equal(t, 1, n)
	n, err = peer.PostRecv(nil)
	require.NoError(t, err)
	require.Zero(t, n)
}

func TestTheTracerSeesWhatTheDeviceTook(t *testing.T) {
	b := newBench(t)
	qp, peer := b.connected(t)
	type posted struct {
		qpn    uint32
		id     uint64
		length int
	}
	var sends, recvs []posted
	var done []uint64
	b.dev.SetTracer(&verbs.Tracer{
		PostSend:   func(qpn uint32, wr *verbs.SendWR) { sends = append(sends, posted{qpn, wr.ID, wr.Len()}) },
		PostRecv:   func(qpn uint32, wr *verbs.RecvWR) { recvs = append(recvs, posted{qpn, wr.ID, 0}) },
		Completion: func(wc *verbs.WC) { done = append(done, wc.ID) },
	})
	_, err := peer.PostRecv([]verbs.RecvWR{{ID: 7}})
	require.NoError(t, err)
	_, err = qp.PostSend([]verbs.SendWR{inlineSend(3, 1, 2, 3), {ID: 4, Opcode: 200}})
	require.ErrorIs(t, err, verbs.ErrInvalid)
	b.poll(t, 2)
	require.Equal(t, []posted{{qp.Num(), 3, 3}}, sends, "not the one that was refused")
	require.Equal(t, []posted{{peer.Num(), 7, 0}}, recvs)
	require.ElementsMatch(t, []uint64{3, 7}, done)

	srq, err := b.pd.CreateSRQ(verbs.SRQAttr{MaxWR: 4, MaxSGE: 1})
	require.NoError(t, err)
	defer srq.Close()
	_, err = srq.PostRecv([]verbs.RecvWR{{ID: 8}})
	require.NoError(t, err)
	require.Equal(t, posted{0, 8, 0}, recvs[len(recvs)-1], "an SRQ has no number")

	b.dev.SetTracer(&verbs.Tracer{}) // nil functions are skipped
	_, err = peer.PostRecv([]verbs.RecvWR{{ID: 9}})
	require.NoError(t, err)
	b.dev.SetTracer(nil)
	_, err = peer.PostRecv([]verbs.RecvWR{{ID: 10}})
	require.NoError(t, err)
	require.Len(t, recvs, 2)
}

func TestPostAndPollAllocateNothing(t *testing.T) {
	b := newBench(t)
	qp, peer := b.connected(t)
	payload := make([]byte, 8)
	send := []verbs.SendWR{{Opcode: verbs.OpSendWithImm, Flags: verbs.SendInline, Inline: [][]byte{payload}}}
	// A receive without room for eight bytes would fail the QP.
	mr, err := b.pd.AllocMR(64, verbs.AccessLocalWrite, verbs.MROptions{})
	require.NoError(t, err)
	recv := []verbs.RecvWR{{SGL: []verbs.SGE{mr.SGE(0, 64)}}}
	wcs := make([]verbs.WC, 4)
	round := func() {
		if _, err := peer.PostRecv(recv); err != nil {
			t.Fatal(err)
		}
		if _, err := qp.PostSend(send); err != nil {
			t.Fatal(err)
		}
		for n := 0; n == 0; {
			if n, err = b.cq.Poll(wcs); err != nil || n > 0 && wcs[0].Err() != nil {
				t.Fatal(err, wcs[0])
			}
		}
	}
	round() // the QPs find each other
	require.Zero(t, testing.AllocsPerRun(200, round))
	require.NoError(t, qp.Fail())
	require.NoError(t, mr.Close())
}
