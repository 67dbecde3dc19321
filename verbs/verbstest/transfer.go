package verbstest

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

// transfer is an operation that moves bytes from side a to side b, or for a
// READ the other way.
type transfer struct {
	name     string
	op       verbs.Opcode
	sent     verbs.WCOpcode
	needs    verbs.Cap
	receives bool // uses up a receive of b
	inRecv   bool // and puts the payload into it
	got      verbs.WCOpcode
	flags    verbs.WCFlags
}

var transfers = []transfer{
	{name: "WRITE", op: verbs.OpWrite, sent: verbs.WCWrite},
	{name: "WRITE_WITH_IMM", op: verbs.OpWriteWithImm, sent: verbs.WCWrite, needs: verbs.CapWriteWithImm, receives: true, got: verbs.WCRecvWriteWithImm, flags: verbs.WCWithImm},
	{name: "SEND", op: verbs.OpSend, sent: verbs.WCSend, receives: true, inRecv: true, got: verbs.WCRecv},
	{name: "SEND_WITH_IMM", op: verbs.OpSendWithImm, sent: verbs.WCSend, needs: verbs.CapSendWithImm, receives: true, inRecv: true, got: verbs.WCRecv, flags: verbs.WCWithImm},
	{name: "READ", op: verbs.OpRead, sent: verbs.WCRead, needs: verbs.CapRead},
}

func testTransfer(t *testing.T, s *suite) {
	for _, tr := range transfers {
		for _, size := range []int{0, 1, 7, 40, 41, 64, 4096, 100_000, 1 << 20} {
			for _, pieces := range []int{1, 3} {
				t.Run(fmt.Sprintf("%s/%d_bytes_in_%d", tr.name, size, pieces), func(t *testing.T) {
					runTransfer(t, s, tr, size, pieces, false)
				})
			}
			if size <= usual.cap.MaxInline && tr.op != verbs.OpRead {
				t.Run(fmt.Sprintf("%s/%d_bytes_inline", tr.name, size), func(t *testing.T) {
					runTransfer(t, s, tr, size, 2, true)
				})
			}
		}
	}
}

// runTransfer moves size bytes and looks at both ends, and at the bytes on
// both sides of those that moved.
func runTransfer(t *testing.T, s *suite, tr transfer, size, pieces int, inline bool) {
	a, b := s.connected(t, usual)
	if !a.ctx.Attr().Caps.Has(tr.needs) {
		t.Skipf("the device has no %s", tr.name)
	}
	if most := a.ctx.Attr().MaxSGERead; tr.op == verbs.OpRead && most > 0 && pieces > most {
		t.Skipf("the device reads into %d elements at most", most)
	}
	const at = 24
	source, target := a, b
	if tr.op == verbs.OpRead {
		source, target = b, a
	}
	pattern(source.mr.Bytes()[at:at+size], 0x5a)
	wr := verbs.SendWR{
		ID: 11, Opcode: tr.op, Flags: verbs.SendSignaled, Imm: 0xdeadbeef, RemoteAddr: b.mr.Addr() + at, RKey: b.mr.RKey(),
	}
	cuts := cut(size, pieces)
	for i := range pieces {
		if inline {
			wr.Flags |= verbs.SendInline
			wr.Inline = append(wr.Inline, a.mr.Bytes()[at+cuts[i]:at+cuts[i+1]])
		} else {
			wr.SGL = append(wr.SGL, a.mr.SGE(at+cuts[i], cuts[i+1]-cuts[i]))
		}
	}
	recv := verbs.RecvWR{ID: 22}
	if tr.inRecv {
		half := (size + 10) / 2 // longer than the message, in two elements
		recv.SGL = []verbs.SGE{b.mr.SGE(at, half), b.mr.SGE(at+half, size+10-half)}
	}
	b.receive(recv)
	a.post(wr)
	require.Equal(t, tr.sent, a.sent(11, verbs.WCSuccess).Opcode)
	if tr.receives {
		wc := b.received(22, verbs.WCSuccess)
		require.Equal(t, tr.got, wc.Opcode)
		require.Equal(t, tr.flags, wc.Flags&(verbs.WCWithImm|verbs.WCWithInv))
		require.EqualValues(t, size, wc.ByteLen)
		if tr.flags&verbs.WCWithImm != 0 {
			require.EqualValues(t, uint32(0xdeadbeef), wc.Imm)
		}
	} else if b.silent(b.recv); tr.op == verbs.OpWrite {
		a.placed(b)
	}
	want := pattern(make([]byte, size), 0x5a)
	mem := target.mr.Bytes()
	require.Equal(t, want, mem[at:at+size])
	require.Equal(t, make([]byte, at), mem[:at], "bytes before")
	require.Equal(t, make([]byte, 64), mem[at+size:][:64], "bytes after")
}

// cut divides size bytes into n unequal pieces.
func cut(size, n int) []int {
	at := make([]int, n+1)
	for i := 1; i < n; i++ {
		at[i] = size * i * i / (n * n)
	}
	at[n] = size
	return at
}

func testAtomic(t *testing.T, s *suite) {
	cases := []struct {
		name             string
		op               verbs.Opcode
		completes        verbs.WCOpcode
		before           uint64
		compareAdd, swap uint64
		after            uint64
	}{
		{"fetch and add", verbs.OpFetchAdd, verbs.WCFetchAdd, 40, 2, 0, 42},
		{"fetch and add wraps", verbs.OpFetchAdd, verbs.WCFetchAdd, 1<<64 - 1, 3, 0, 2},
		{"compare and swap that matches", verbs.OpCompareSwap, verbs.WCCompareSwap, 7, 7, 9, 9},
		{"compare and swap that does not", verbs.OpCompareSwap, verbs.WCCompareSwap, 8, 7, 9, 8},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			a, b := s.connected(t, usual)
			if !a.ctx.Attr().Caps.Has(verbs.CapAtomics) {
				t.Skip("the device has no atomics")
			}
			binary.NativeEndian.PutUint64(b.mr.Bytes()[16:], c.before)
			a.post(verbs.SendWR{
				ID: 1, Opcode: c.op, Flags: verbs.SendSignaled, SGL: []verbs.SGE{a.mr.SGE(8, 8)},
				RemoteAddr: b.mr.Addr() + 16, RKey: b.mr.RKey(), CompareAdd: c.compareAdd, Swap: c.swap,
			})
			require.Equal(t, c.completes, a.sent(1, verbs.WCSuccess).Opcode)
			require.Equal(t, c.before, binary.NativeEndian.Uint64(a.mr.Bytes()[8:]), "what was there before")
			require.Equal(t, c.after, binary.NativeEndian.Uint64(b.mr.Bytes()[16:]))
		})
	}
}

func testOrder(t *testing.T, s *suite) {
	t.Run("messages of all kinds arrive as they were posted", func(t *testing.T) {
		a, b := s.connected(t, usual)
		const rounds, batch = 200, 3
		for i := range rounds {
			first := uint64(i * batch)
			for k := range uint64(batch) {
				b.receive(verbs.RecvWR{ID: first + k, SGL: []verbs.SGE{b.mr.SGE(1<<20+int(k)*4096, 4096)}})
			}
			payload := pattern(a.mr.Bytes()[:1000], byte(i))
			a.post(
				verbs.SendWR{Opcode: verbs.OpWrite, SGL: []verbs.SGE{a.mr.SGE(0, 1000)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()},
				verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{a.mr.SGE(0, 700)}},
				verbs.SendWR{Opcode: a.sendOp(), Flags: verbs.SendInline, Inline: [][]byte{{byte(i)}}, Imm: uint32(i)},
				verbs.SendWR{ID: first, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{a.mr.SGE(300, 700)}},
			)
			wcs := b.poll(b.recv, batch)
			for k, wc := range wcs {
				require.Equal(t, verbs.WCSuccess, wc.Status)
				require.Equal(t, first+uint64(k), wc.ID)
			}
			require.Equal(t, payload, b.mr.Bytes()[:1000], "a WRITE is there when a later SEND is")
			require.Equal(t, payload[:700], b.mr.Bytes()[1<<20:][:700])
			require.Equal(t, byte(i), b.mr.Bytes()[1<<20+4096])
			b.requireImm(uint32(i), wcs[1])
			require.Equal(t, payload[300:], b.mr.Bytes()[1<<20+8192:][:700])
			a.sent(first, verbs.WCSuccess)
		}
	})
	t.Run("only signaled requests complete", func(t *testing.T) {
		a, b := s.connected(t, usual)
		wr := verbs.SendWR{Opcode: verbs.OpWrite, SGL: []verbs.SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
		for range 10 {
			a.post(wr)
		}
		wr.ID, wr.Flags = 99, verbs.SendSignaled
		a.post(wr)
		a.sent(99, verbs.WCSuccess)
		a.silent(a.send)
	})
	t.Run("all complete with SignalAll", func(t *testing.T) {
		conf := usual
		conf.signalAll = true
		a, b := s.connected(t, conf)
		for i := range uint64(10) {
			a.post(verbs.SendWR{ID: i, Opcode: verbs.OpWrite, SGL: []verbs.SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
		}
		for i := range uint64(10) {
			a.sent(i, verbs.WCSuccess)
		}
	})
	t.Run("a fenced request comes after the READ before it", func(t *testing.T) {
		a, b := s.connected(t, usual)
		pattern(b.mr.Bytes()[:4096], 1)
		want := pattern(make([]byte, 4096), 1)
		a.post(
			verbs.SendWR{ID: 1, Opcode: verbs.OpRead, SGL: []verbs.SGE{a.mr.SGE(0, 4096)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()},
			verbs.SendWR{ID: 2, Opcode: verbs.OpWrite, Flags: verbs.SendFence | verbs.SendSignaled, SGL: []verbs.SGE{a.mr.SGE(0, 4096)}, RemoteAddr: b.mr.Addr() + 8192, RKey: b.mr.RKey()},
		)
		a.sent(2, verbs.WCSuccess)
		a.placed(b)
		require.Equal(t, want, b.mr.Bytes()[8192:][:4096])
	})
}
