package verbstest

import (
	"encoding/binary"
	"testing"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

// testDurable writes and flushes memory that is meant to last.
func testDurable(t *testing.T, s *suite) {
	t.Run("ATOMIC_WRITE stores eight bytes", func(t *testing.T) {
		a, b := s.connected(t, usual)
		if !a.ctx.Attr().Caps.Has(verbs.CapAtomicWrite) {
			t.Skip("the device has no ATOMIC_WRITE")
		}
		word := binary.NativeEndian.AppendUint64(nil, 0x0123456789abcdef)
		a.post(verbs.SendWR{
			ID: 1, Opcode: verbs.OpAtomicWrite, Flags: verbs.SendSignaled | verbs.SendInline, Inline: [][]byte{word},
			RemoteAddr: b.mr.Addr() + 16, RKey: b.mr.RKey(),
		})
		require.Equal(t, verbs.WCAtomicWrite, a.sent(1, verbs.WCSuccess).Opcode)
		require.Equal(t, word, b.mr.Bytes()[16:24])
		require.Equal(t, make([]byte, 16), b.mr.Bytes()[:16])
		require.Equal(t, make([]byte, 16), b.mr.Bytes()[24:40])
	})
	t.Run("FLUSH comes after the WRITE before it", func(t *testing.T) {
		conf := usual
		conf.memAccess = everyRight | verbs.AccessFlushGlobal
		conf.qpAccess = conf.memAccess
		if !s.open(t).A.Attr().Caps.Has(verbs.CapFlush) {
			t.Skip("the device has no FLUSH")
		}
		a, b := s.connected(t, conf)
		for _, level := range []verbs.FlushLevel{verbs.FlushRange, verbs.FlushMR} {
			want := pattern(a.mr.Bytes()[:3000], byte(level))
			wr := a.write(b.mr.Addr(), b.mr.RKey(), 3000)
			wr.Flags = 0
			a.post(wr, verbs.SendWR{
				ID: 2, Opcode: verbs.OpFlush, Flags: verbs.SendSignaled, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(),
				Flush: &verbs.Flush{Type: verbs.FlushGlobal, Level: level, Length: 3000},
			})
			require.Equal(t, verbs.WCFlush, a.sent(2, verbs.WCSuccess).Opcode)
			require.Equal(t, want, b.mr.Bytes()[:3000])
		}
	})
	t.Run("FLUSH of memory without that right is refused", func(t *testing.T) {
		a, b := s.connected(t, usual)
		if !a.ctx.Attr().Caps.Has(verbs.CapFlush) {
			t.Skip("the device has no FLUSH")
		}
		a.post(verbs.SendWR{
			ID: 2, Opcode: verbs.OpFlush, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(),
			Flush: &verbs.Flush{Type: verbs.FlushGlobal, Length: 8},
		})
		wc := a.poll(a.send, 1)[0]
		require.Contains(t, []verbs.WCStatus{verbs.WCRemAccessErr, verbs.WCRemInvReqErr}, wc.Status)
		a.awaitState(verbs.QPStateErr)
	})
}
