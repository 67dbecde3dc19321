package verbstest

import (
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

// testContract is about what package verbs says of all devices: which requests
// of a batch were taken, what a tracer sees, and what counts as pinned.
func testContract(t *testing.T, s *suite) {
	t.Run("PostSend takes what comes before the bad request", func(t *testing.T) {
		a, b := s.connected(t, usual)
		sizes := a.qp.Attr().Cap
		good := a.write(b.mr.Addr(), b.mr.RKey(), 8)
		for _, c := range []struct {
			name string
			bad  verbs.SendWR
			need verbs.Cap
			want string
		}{
			{"unknown opcode", verbs.SendWR{Opcode: 200}, 0, "opcode 200"},
			{"opcode of another kind", verbs.SendWR{Opcode: 10}, 0, "opcode 10"},
			{"unknown flag", verbs.SendWR{Opcode: verbs.OpSend, Flags: 1 << 7}, 0, "flags"},
			{"too much inline", verbs.SendWR{
				Opcode: verbs.OpSend, Flags: verbs.SendInline, Inline: [][]byte{make([]byte, sizes.MaxInline+1)},
			}, 0, "inline bytes"},
			{"inline READ", verbs.SendWR{Opcode: verbs.OpRead, Flags: verbs.SendInline}, verbs.CapRead, "READ cannot be inline"},
			{"inline atomic", verbs.SendWR{Opcode: verbs.OpFetchAdd, Flags: verbs.SendInline}, verbs.CapAtomics, "FETCH_AND_ADD cannot be inline"},
			{"too many SGEs", verbs.SendWR{Opcode: verbs.OpSend, SGL: make([]verbs.SGE, sizes.MaxSendSGE+1)}, 0, "SGEs"},
		} {
			if !a.ctx.Attr().Caps.Has(c.need) {
				continue
			}
			n, err := a.qp.PostSend([]verbs.SendWR{c.bad, good})
			require.ErrorIs(t, err, verbs.ErrInvalid, c.name)
			require.ErrorContains(t, err, c.want)
			require.Zero(t, n, c.name)
			n, err = a.qp.PostSend([]verbs.SendWR{good, good, c.bad, good})
			require.ErrorIs(t, err, verbs.ErrInvalid, c.name)
			require.Equal(t, 2, n, c.name)
			a.poll(a.send, 2)
		}
		n, err := a.qp.PostSend(nil)
		require.NoError(t, err)
		require.Zero(t, n)
		good.ID = 51
		a.post(good)
		a.sent(51, verbs.WCSuccess) // and nothing came before it
		a.silent(a.send)
	})
	t.Run("PostRecv takes what comes before the bad request", func(t *testing.T) {
		a, _ := s.connected(t, usual)
		bad := verbs.RecvWR{SGL: make([]verbs.SGE, a.qp.Attr().Cap.MaxRecvSGE+1)}
		n, err := a.qp.PostRecv([]verbs.RecvWR{{}, bad, {}})
		require.ErrorIs(t, err, verbs.ErrInvalid)
		require.Equal(t, 1, n)
		n, err = a.qp.PostRecv(nil)
		require.NoError(t, err)
		require.Zero(t, n)
	})
	t.Run("the tracer sees what the device took", func(t *testing.T) {
		a, b := s.connected(t, usual)
		type posted struct {
			qpn    uint32
			id     uint64
			length int
		}
		var sends, recvs []posted
		var done []uint64
		tracer := &verbs.Tracer{
			PostSend:   func(qpn uint32, wr *verbs.SendWR) { sends = append(sends, posted{qpn, wr.ID, wr.Len()}) },
			PostRecv:   func(qpn uint32, wr *verbs.RecvWR) { recvs = append(recvs, posted{qpn, wr.ID, 0}) },
			Completion: func(wc *verbs.WC) { done = append(done, wc.ID) },
		}
		a.ctx.SetTracer(tracer)
		b.ctx.SetTracer(tracer)
		b.receive(verbs.RecvWR{ID: 7, SGL: []verbs.SGE{b.mr.SGE(0, 64)}})
		_, err := a.qp.PostSend([]verbs.SendWR{
			{ID: 3, Opcode: verbs.OpSend, Flags: verbs.SendInline | verbs.SendSignaled, Inline: [][]byte{{1, 2, 3}}},
			{ID: 4, Opcode: 200},
		})
		require.ErrorIs(t, err, verbs.ErrInvalid)
		a.sent(3, verbs.WCSuccess)
		b.received(7, verbs.WCSuccess)
		require.Equal(t, []posted{{a.qp.Num(), 3, 3}}, sends, "not the one that was refused")
		require.Equal(t, []posted{{b.qp.Num(), 7, 0}}, recvs)
		require.Equal(t, []uint64{3, 7}, done)

		b.ctx.SetTracer(&verbs.Tracer{}) // nil functions are skipped
		b.receive(verbs.RecvWR{ID: 8})
		b.ctx.SetTracer(nil)
		b.receive(verbs.RecvWR{ID: 9})
		require.Len(t, recvs, 1)
	})
	t.Run("events of the tracer tell of a request from post to completion", func(t *testing.T) {
		a, b := s.connected(t, usual)
		var events []verbs.TraceEvent
		tracer := &verbs.Tracer{Event: func(e verbs.TraceEvent) { events = append(events, e) }}
		began := time.Now()
		a.ctx.SetTracer(tracer)
		b.ctx.SetTracer(tracer)
		defer b.ctx.SetTracer(nil)
		defer a.ctx.SetTracer(nil)
		b.receive(verbs.RecvWR{ID: 7, SGL: []verbs.SGE{b.mr.SGE(0, 64)}})
		a.post(verbs.SendWR{ID: 3, Opcode: verbs.OpSend, Flags: verbs.SendInline | verbs.SendSignaled, Inline: [][]byte{{1, 2, 3}}})
		a.sent(3, verbs.WCSuccess)
		b.received(7, verbs.WCSuccess)
		require.NoError(t, a.qp.Fail())
		a.post(verbs.SendWR{ID: 4, Opcode: verbs.OpSend, SGL: []verbs.SGE{a.mr.SGE(0, 40)}})
		failed := a.poll(a.send, 1)[0].Status
		require.NotEqual(t, verbs.WCSuccess, failed)
		device := a.ctx.Name()
		want := []verbs.TraceEvent{
			{Kind: verbs.TracePostRecv, Device: device, QPN: b.qp.Num(), Op: "RECV", ID: 7, Bytes: 64},
			{Kind: verbs.TracePostSend, Device: device, QPN: a.qp.Num(), Op: "SEND", ID: 3, Bytes: 3},
			{Kind: verbs.TraceCompletion, Device: device, QPN: a.qp.Num(), Op: "SEND", ID: 3},
			{Kind: verbs.TraceCompletion, Device: device, QPN: b.qp.Num(), Op: "RECV", ID: 7, Bytes: 3},
			{Kind: verbs.TracePostSend, Device: device, QPN: a.qp.Num(), Op: "SEND", ID: 4, Bytes: 40},
			{Kind: verbs.TraceCompletion, Device: device, QPN: a.qp.Num(), ID: 4, Status: failed},
		}
		require.Len(t, events, len(want))
		_, tells := a.qp.Driver().(verbs.WQEDriver)
		for i := range events {
			e := &events[i]
			require.WithinRange(t, e.Time, began, time.Now())
			began = e.Time
			if e.Kind == verbs.TracePostSend && tells {
				require.Positive(t, e.WQEBytes)
			} else {
				require.Zero(t, e.WQEBytes)
			}
			if e.Kind == verbs.TraceCompletion && e.Op != "RECV" {
				e.Bytes = 0 // what a device says of the bytes of a SEND is its affair
			}
			e.Time, e.WQEBytes = time.Time{}, 0
		}
		require.Equal(t, want, events)
	})
	t.Run("the tracer sees the receives of an SRQ, which has no number", func(t *testing.T) {
		a, _ := s.sides(t, usual)
		if !a.ctx.Attr().Caps.Has(verbs.CapSRQ) {
			t.Skip("the device has no SRQs")
		}
		srq, err := a.pd.CreateSRQ(verbs.SRQAttr{MaxWR: 4, MaxSGE: 1})
		require.NoError(t, err)
		var seen []uint64
		a.ctx.SetTracer(&verbs.Tracer{PostRecv: func(qpn uint32, wr *verbs.RecvWR) {
			require.Zero(t, qpn)
			seen = append(seen, wr.ID)
		}})
		_, err = srq.PostRecv([]verbs.RecvWR{{ID: 8}, {ID: 9}})
		require.NoError(t, err)
		require.Equal(t, []uint64{8, 9}, seen)
	})
	t.Run("pinned bytes are those of open regions", func(t *testing.T) {
		a, _ := s.sides(t, usual)
		base := verbs.PinnedBytes()
		mr, err := a.pd.AllocMR(10000, verbs.AccessLocalWrite, verbs.MROptions{})
		require.NoError(t, err)
		require.Len(t, mr.Bytes(), 10000)
		require.Equal(t, base+10000, verbs.PinnedBytes())
		slice, err := a.pd.RegisterMR(make([]byte, 500), verbs.AccessLocalWrite)
		require.NoError(t, err)
		require.Equal(t, base+10500, verbs.PinnedBytes())

		defer verbs.SetPinLimit(verbs.SetPinLimit(base + 11000))
		_, err = a.pd.AllocMR(501, 0, verbs.MROptions{})
		require.ErrorIs(t, err, verbs.ErrPinLimit)
		require.ErrorContains(t, err, "verbs.SetPinLimit", "the error says what to do")
		_, err = a.pd.RegisterMR(make([]byte, 501), 0)
		require.ErrorIs(t, err, verbs.ErrPinLimit)
		require.Equal(t, base+10500, verbs.PinnedBytes(), "what failed is not counted")

		require.NoError(t, slice.Close())
		require.NoError(t, slice.Close(), "it is closed already")
		require.Equal(t, base+10000, verbs.PinnedBytes())
		require.NoError(t, mr.Close())
		require.Equal(t, base, verbs.PinnedBytes())
	})
	t.Run("a closed context has no pinned bytes", func(t *testing.T) {
		p := s.open(t)
		base := verbs.PinnedBytes()
		pd, err := p.A.AllocPD()
		require.NoError(t, err)
		mr, err := pd.AllocMR(4096, verbs.AccessLocalWrite, verbs.MROptions{})
		require.NoError(t, err)
		require.NoError(t, p.A.Close())
		require.NoError(t, p.A.Close())
		require.Equal(t, base, verbs.PinnedBytes())
		require.NoError(t, mr.Close(), "it went with the context")
		_, err = pd.AllocMR(4096, verbs.AccessLocalWrite, verbs.MROptions{})
		require.ErrorIs(t, err, verbs.ErrClosed)
		require.Equal(t, base, verbs.PinnedBytes())
		_, err = p.A.NextEvent()
		require.ErrorIs(t, err, verbs.ErrClosed)
	})
}
