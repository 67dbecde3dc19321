package verbstest

import (
	"testing"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

// testRefusal has the responder refuse a request: the initiator's request
// fails with the status of the table, what follows is flushed, both QPs go to
// ERR, and nothing was changed.
func testRefusal(t *testing.T, s *suite) {
	other := func(access verbs.Access) config {
		c := usual
		c.memAccess = access
		return c
	}
	closed := usual
	closed.qpAccess = noAccess
	const rw = verbs.AccessLocalWrite | verbs.AccessRemoteWrite
	cases := []struct {
		name string
		conf config
		// wr makes the request; b's memory begins at addr.
		wr   func(a, b *side) verbs.SendWR
		want verbs.WCStatus
	}{
		{"unknown rkey", usual, func(a, b *side) verbs.SendWR { return a.write(b.mr.Addr(), b.mr.RKey()^0x5555, 8) }, verbs.WCRemAccessErr},
		{"one byte past the end", usual, func(a, b *side) verbs.SendWR {
			return a.write(b.mr.Addr()+uint64(len(b.mr.Bytes()))-7, b.mr.RKey(), 8)
		}, verbs.WCRemAccessErr},
		{"before the beginning", usual, func(a, b *side) verbs.SendWR { return a.write(b.mr.Addr()-1, b.mr.RKey(), 8) }, verbs.WCRemAccessErr},
		{"address that wraps", usual, func(a, b *side) verbs.SendWR { return a.write(^uint64(0)-3, b.mr.RKey(), 8) }, verbs.WCRemAccessErr},
		{"WRITE to memory that is only read", other(verbs.AccessLocalWrite | verbs.AccessRemoteRead), func(a, b *side) verbs.SendWR {
			return a.write(b.mr.Addr(), b.mr.RKey(), 8)
		}, verbs.WCRemAccessErr},
		{"READ of memory that is only written", other(rw), func(a, b *side) verbs.SendWR {
			return a.read(b.mr.Addr(), b.mr.RKey(), 8)
		}, verbs.WCRemAccessErr},
		{"atomic on memory without that right", other(rw | verbs.AccessRemoteRead), func(a, b *side) verbs.SendWR {
			return a.fetchAdd(b.mr.Addr(), b.mr.RKey())
		}, verbs.WCRemAccessErr},
		{"memory without remote rights", other(verbs.AccessLocalWrite), func(a, b *side) verbs.SendWR {
			return a.write(b.mr.Addr(), b.mr.RKey(), 8)
		}, verbs.WCRemAccessErr},
		{"memory of another PD", usual, func(a, b *side) verbs.SendWR {
			pd, err := b.ctx.AllocPD()
			require.NoError(b.t, err)
			mr, err := pd.AllocMR(4096, everyRight, verbs.MROptions{})
			require.NoError(b.t, err)
			return a.write(mr.Addr(), mr.RKey(), 8)
		}, verbs.WCRemAccessErr},
		{"memory that was deregistered", usual, func(a, b *side) verbs.SendWR {
			mr, err := b.pd.AllocMR(4096, everyRight, verbs.MROptions{})
			require.NoError(b.t, err)
			wr := a.write(mr.Addr(), mr.RKey(), 8)
			a.post(wr)
			a.sent(wr.ID, verbs.WCSuccess)
			require.NoError(b.t, mr.Close())
			return wr
		}, verbs.WCRemAccessErr},
		{"unaligned atomic", usual, func(a, b *side) verbs.SendWR { return a.fetchAdd(b.mr.Addr()+4, b.mr.RKey()) }, verbs.WCRemInvReqErr},
		{"WRITE at a QP that lets none in", closed, func(a, b *side) verbs.SendWR { return a.write(b.mr.Addr(), b.mr.RKey(), 8) }, verbs.WCRemInvReqErr},
		{"READ at a QP that lets none in", closed, func(a, b *side) verbs.SendWR { return a.read(b.mr.Addr(), b.mr.RKey(), 8) }, verbs.WCRemInvReqErr},
		{"atomic at a QP that lets none in", closed, func(a, b *side) verbs.SendWR { return a.fetchAdd(b.mr.Addr(), b.mr.RKey()) }, verbs.WCRemInvReqErr},
		{"atomic with an unknown rkey", usual, func(a, b *side) verbs.SendWR { return a.fetchAdd(b.mr.Addr(), b.mr.RKey()^0x5555) }, verbs.WCRemAccessErr},
		{"SEND longer than the receive", usual, func(a, b *side) verbs.SendWR {
			b.receive(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{b.mr.SGE(0, 7)}})
			return verbs.SendWR{ID: 50, Opcode: verbs.OpSend, SGL: []verbs.SGE{a.mr.SGE(0, 8)}}
		}, verbs.WCRemInvReqErr},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			a, b := s.connected(t, c.conf)
			if c.name == "unaligned atomic" && a.pair.Lacks&LackLateRefusal != 0 {
				t.Skip("it is refused when it is posted")
			}
			if a.iwarp() && (c.conf.qpAccess != 0 || c.conf.memAccess == rw) {
				t.Skip("siw knows no rights but that to write memory")
			}
			pattern(a.mr.Bytes()[:64], 3)
			wr := c.wr(a, b)
			a.requireCap(wr.Opcode)
			before := append([]byte(nil), b.mr.Bytes()[:64]...)
			wr.Flags &^= verbs.SendSignaled // a failure completes all the same
			a.post(wr)
			a.refused(wr.ID, c.want)
			a.awaitState(verbs.QPStateErr)
			b.awaitState(verbs.QPStateErr)
			a.post(a.write(b.mr.Addr(), b.mr.RKey(), 8))
			a.sent(50, verbs.WCWRFlushErr)
			require.Equal(t, before, b.mr.Bytes()[:64], "a refused request changes nothing")
		})
	}
	t.Run("a receive too short completes with LOC_LEN, the next is flushed", func(t *testing.T) {
		a, b := s.connected(t, usual)
		b.receive(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{b.mr.SGE(0, 7)}}, verbs.RecvWR{ID: 2, SGL: []verbs.SGE{b.mr.SGE(0, 100)}})
		a.post(verbs.SendWR{ID: 50, Opcode: verbs.OpSend, SGL: []verbs.SGE{a.mr.SGE(0, 8)}})
		a.refused(50, verbs.WCRemInvReqErr)
		b.received(1, verbs.WCLocLenErr)
		b.received(2, verbs.WCWRFlushErr)
	})
}

// requireCap skips the test if the device lacks an operation.
func (s *side) requireCap(op verbs.Opcode) {
	s.t.Helper()
	needs := map[verbs.Opcode]verbs.Cap{
		verbs.OpRead: verbs.CapRead, verbs.OpFetchAdd: verbs.CapAtomics, verbs.OpCompareSwap: verbs.CapAtomics,
		verbs.OpWriteWithImm: verbs.CapWriteWithImm, verbs.OpSendWithImm: verbs.CapSendWithImm, verbs.OpSendWithInv: verbs.CapSendWithInv,
	}
	if !s.ctx.Attr().Caps.Has(needs[op]) {
		s.t.Skipf("the device has no %v", op)
	}
}

func (s *side) write(addr uint64, rkey uint32, n int) verbs.SendWR {
	return verbs.SendWR{
		ID: 50, Opcode: verbs.OpWrite, Flags: verbs.SendSignaled, SGL: []verbs.SGE{s.mr.SGE(0, n)}, RemoteAddr: addr, RKey: rkey,
	}
}

func (s *side) read(addr uint64, rkey uint32, n int) verbs.SendWR {
	wr := s.write(addr, rkey, n)
	wr.Opcode = verbs.OpRead
	return wr
}

func (s *side) fetchAdd(addr uint64, rkey uint32) verbs.SendWR {
	wr := s.write(addr, rkey, 8)
	wr.Opcode, wr.CompareAdd = verbs.OpFetchAdd, 1
	return wr
}

// testLocalErrors has the initiator's own memory refuse.
func testLocalErrors(t *testing.T, s *suite) {
	cases := []struct {
		name string
		sge  func(a *side) verbs.SGE
		op   verbs.Opcode
	}{
		{"unknown lkey", func(a *side) verbs.SGE {
			e := a.mr.SGE(0, 8)
			e.LKey ^= 0x5555
			return e
		}, verbs.OpWrite},
		{"past the end", func(a *side) verbs.SGE {
			e := a.mr.SGE(0, 8)
			e.Addr += uint64(len(a.mr.Bytes())) - 4
			return e
		}, verbs.OpWrite},
		{"before the beginning", func(a *side) verbs.SGE {
			e := a.mr.SGE(0, 8)
			e.Addr--
			return e
		}, verbs.OpWrite},
		{"memory of another PD", func(a *side) verbs.SGE {
			pd, err := a.ctx.AllocPD()
			require.NoError(a.t, err)
			mr, err := pd.AllocMR(4096, everyRight, verbs.MROptions{})
			require.NoError(a.t, err)
			return mr.SGE(0, 8)
		}, verbs.OpWrite},
		{"memory that was deregistered", func(a *side) verbs.SGE {
			mr, err := a.pd.AllocMR(4096, everyRight, verbs.MROptions{})
			require.NoError(a.t, err)
			e := mr.SGE(0, 8)
			require.NoError(a.t, mr.Close())
			return e
		}, verbs.OpWrite},
		{"SEND of an unknown lkey", func(a *side) verbs.SGE {
			e := a.mr.SGE(0, 8)
			e.LKey ^= 0x5555
			return e
		}, verbs.OpSend},
		{"atomic of an unknown lkey", func(a *side) verbs.SGE {
			e := a.mr.SGE(0, 8)
			e.LKey ^= 0x5555
			return e
		}, verbs.OpFetchAdd},
		{"READ into memory that may not be written", func(a *side) verbs.SGE {
			mr, err := a.pd.AllocMR(4096, 0, verbs.MROptions{})
			require.NoError(a.t, err)
			return mr.SGE(0, 8)
		}, verbs.OpRead},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			a, b := s.connected(t, usual)
			a.requireCap(c.op)
			b.receive(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{b.mr.SGE(0, 8)}})
			wr := a.write(b.mr.Addr(), b.mr.RKey(), 8)
			wr.Opcode, wr.SGL = c.op, []verbs.SGE{c.sge(a)}
			a.post(wr)
			a.failedLocally(wr.ID, verbs.WCLocProtErr)
			a.awaitState(verbs.QPStateErr)
		})
	}
	t.Run("a receive into memory that may not be written", func(t *testing.T) {
		a, b := s.connected(t, usual)
		mr, err := b.pd.AllocMR(4096, 0, verbs.MROptions{})
		require.NoError(t, err)
		b.receive(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{mr.SGE(0, 100)}}, verbs.RecvWR{ID: 2})
		a.post(verbs.SendWR{ID: 50, Opcode: verbs.OpSend, SGL: []verbs.SGE{a.mr.SGE(0, 8)}})
		if b.iwarp() { // siw has one status for all that goes wrong here
			b.received(1, verbs.WCGeneralErr)
		} else {
			b.received(1, verbs.WCLocProtErr)
		}
		b.received(2, verbs.WCWRFlushErr)
		b.awaitState(verbs.QPStateErr)
		a.awaitState(verbs.QPStateErr)
	})
}
