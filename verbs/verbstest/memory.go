package verbstest

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

// addressInPage is where in its page memory begins.
func addressInPage(mem []byte) int {
	return int(uintptr(unsafe.Pointer(unsafe.SliceData(mem))) % uintptr(os.Getpagesize()))
}

// ofHugePages asks the kernel, where it says that, whether memory is of pages that are larger than
// the usual ones.
func ofHugePages(t *testing.T, mem []byte) bool {
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Logf("the kernel does not say: %v", err)
		return false
	}
	at, inside := uintptr(unsafe.Pointer(unsafe.SliceData(mem))), false
	for line := range strings.Lines(string(smaps)) {
		var from, to uintptr
		var size int
		if n, _ := fmt.Sscanf(line, "%x-%x ", &from, &to); n == 2 {
			inside = from <= at && at < to
		} else if n, _ := fmt.Sscanf(line, "KernelPageSize: %d kB", &size); n == 1 && inside {
			return size<<10 > os.Getpagesize()
		}
	}
	return false
}

// relax gives sides memory to which the device may write out of order. What is in it once a completion
// has come is the same as without that.
func relax(ends ...*side) {
	for _, end := range ends {
		end.t.Helper()
		var err error
		end.mr, err = end.pd.AllocMR(1<<20, everyRight|verbs.AccessRelaxedOrdering, verbs.MROptions{})
		require.NoError(end.t, err)
	}
}

// testMemory registers memory in other ways than the usual one.
func testMemory(t *testing.T, s *suite) {
	t.Run("addresses begin where the caller says", func(t *testing.T) {
		a, b := s.connected(t, usual)
		page := os.Getpagesize()
		iova := uint64(7 * page)
		if !b.ctx.Attr().Caps.Has(verbs.CapIOVA) {
			_, err := b.pd.AllocMR(page, everyRight, verbs.MROptions{IOVA: iova})
			require.ErrorIs(t, err, verbs.ErrUnsupported)
			_, err = b.pd.RegisterMRAt(make([]byte, page), iova, verbs.AccessLocalWrite)
			require.ErrorIs(t, err, verbs.ErrUnsupported)
			t.Skip("the device has no such addresses")
		}
		for _, bad := range []uint64{iova + 1, ^uint64(0) - uint64(page) + 1} {
			_, err := b.pd.AllocMR(2*page, everyRight, verbs.MROptions{IOVA: bad})
			require.ErrorIs(t, err, verbs.ErrInvalid, "%#x", bad)
		}
		_, err := b.pd.AllocMR(page, everyRight|verbs.AccessZeroBased, verbs.MROptions{IOVA: iova})
		require.ErrorIs(t, err, verbs.ErrInvalid)
		mr, err := b.pd.AllocMR(2*page, everyRight, verbs.MROptions{IOVA: iova})
		require.NoError(t, err)
		require.Equal(t, iova, mr.Addr())
		want := pattern(a.mr.Bytes()[:100], 5)
		a.post(a.write(iova+50, mr.RKey(), 100))
		a.sent(50, verbs.WCSuccess)
		a.placed(b)
		require.Equal(t, want, mr.Bytes()[50:150])

		// A slice of the caller lies anywhere in its page.
		slice := make([]byte, 1000)
		pattern(slice, 6)
		at := iova + uint64(addressInPage(slice))
		local, err := b.pd.RegisterMRAt(slice, at, verbs.AccessLocalWrite)
		require.NoError(t, err)
		require.Equal(t, at, local.Addr())
		for _, wrong := range []uint64{0, at + 1} {
			_, err = b.pd.RegisterMRAt(slice, wrong, verbs.AccessLocalWrite)
			require.ErrorIs(t, err, verbs.ErrInvalid)
		}
		a.receive(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{a.mr.SGE(0, 1000)}})
		b.post(verbs.SendWR{ID: 2, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{local.SGE(0, 1000)}})
		a.received(1, verbs.WCSuccess)
		b.sent(2, verbs.WCSuccess)
		require.Equal(t, slice, a.mr.Bytes()[:1000])

		a.post(a.write(mr.Addr()-1, mr.RKey(), 8))
		a.refused(50, verbs.WCRemAccessErr)
	})
	t.Run("a region that changes its memory has other addresses", func(t *testing.T) {
		a, b := s.connected(t, usual)
		if !b.ctx.Attr().Caps.Has(verbs.CapIOVA | verbs.CapReregister) {
			t.Skip("the device has no such addresses, or cannot change regions")
		}
		slice := pattern(make([]byte, 8192), 1)
		other := pattern(make([]byte, 5000), 9)
		const iova = 1 << 40
		mr, err := b.pd.RegisterMR(slice, verbs.AccessLocalWrite)
		require.NoError(t, err)
		update := verbs.MRUpdate{Memory: other, IOVA: iova + uint64(addressInPage(other)) + 1}
		require.ErrorIs(t, mr.Reregister(update, verbs.MRChangeMemory), verbs.ErrInvalid)
		update.IOVA--
		if err := mr.Reregister(update, verbs.MRChangeMemory); err != nil {
			require.ErrorIs(t, err, verbs.ErrUnsupported)
			t.Skip("the device changes no memory, or lets nobody choose its addresses")
		}
		require.Equal(t, update.IOVA, mr.Addr())
		require.NoError(t, mr.Reregister(verbs.MRUpdate{Access: everyRight}, verbs.MRChangeAccess))
		require.Equal(t, update.IOVA, mr.Addr(), "it stays")
		a.receive(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{a.mr.SGE(0, 5000)}})
		b.post(verbs.SendWR{ID: 2, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{mr.SGE(0, 5000)}})
		a.received(1, verbs.WCSuccess)
		b.sent(2, verbs.WCSuccess)
		require.Equal(t, other, a.mr.Bytes()[:5000])
	})
	t.Run("an MR without memory reads as zeros, and loses what is written", func(t *testing.T) {
		a, b := s.connected(t, usual)
		null, err := a.pd.AllocNullMR()
		if !a.ctx.Attr().Caps.Has(verbs.CapNullMR) {
			require.ErrorIs(t, err, verbs.ErrUnsupported)
			t.Skip("the device has none")
		}
		require.NoError(t, err)
		require.Nil(t, null.Bytes())
		nothing := func(n uint32) verbs.SGE { return verbs.SGE{Addr: 1 << 50, Length: n, LKey: null.LKey()} }
		pattern(a.mr.Bytes()[:4096], 1)
		ones := func() { pattern(b.mr.Bytes()[:200_000], 3) }
		check := func(n int) { // bytes of side b: 10, n zeros, 20
			t.Helper()
			require.Equal(t, a.mr.Bytes()[:10], b.mr.Bytes()[:10])
			require.Equal(t, make([]byte, n), b.mr.Bytes()[10:][:n])
			require.Equal(t, a.mr.Bytes()[10:][:20], b.mr.Bytes()[10+n:][:20])
		}
		for _, n := range []int{5, 5000, 150_000} {
			wr := a.write(b.mr.Addr(), b.mr.RKey(), 10)
			wr.SGL = []verbs.SGE{a.mr.SGE(0, 10), nothing(uint32(n)), a.mr.SGE(10, 20)}
			ones()
			a.post(wr)
			a.sent(50, verbs.WCSuccess)
			check(n)
			ones()
			b.receive(verbs.RecvWR{ID: 3, SGL: []verbs.SGE{b.mr.SGE(0, n+30)}})
			wr.Opcode = verbs.OpSend
			a.post(wr)
			b.received(3, verbs.WCSuccess)
			a.sent(50, verbs.WCSuccess)
			check(n)

			// The other way, what comes for it is skipped.
			want := pattern(b.mr.Bytes()[:n+30], 7)
			for _, read := range []bool{false, true} {
				clear(a.mr.Bytes()[:4096])
				into := []verbs.SGE{a.mr.SGE(0, 10), nothing(uint32(n)), a.mr.SGE(10, 20)}
				if read {
					a.post(verbs.SendWR{ID: 4, Opcode: verbs.OpRead, Flags: verbs.SendSignaled, SGL: into, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
					a.sent(4, verbs.WCSuccess)
				} else {
					a.receive(verbs.RecvWR{ID: 5, SGL: into})
					b.post(verbs.SendWR{ID: 6, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{b.mr.SGE(0, n+30)}})
					a.received(5, verbs.WCSuccess)
					b.sent(6, verbs.WCSuccess)
				}
				require.Equal(t, want[:10], a.mr.Bytes()[:10])
				require.Equal(t, want[10+n:], a.mr.Bytes()[10:][:20])
				require.Equal(t, make([]byte, 100), a.mr.Bytes()[30:][:100])
			}
			pattern(a.mr.Bytes()[:4096], 1)
		}
		require.ErrorIs(t, null.Reregister(verbs.MRUpdate{}, verbs.MRChangeAccess), verbs.ErrUnsupported)
		second, err := a.pd.AllocNullMR()
		require.NoError(t, err)
		require.NoError(t, null.Close())
		if second.LKey() == null.LKey() {
			return // one key of the device, which is always good
		}
		wr := a.write(b.mr.Addr(), b.mr.RKey(), 8)
		wr.SGL = []verbs.SGE{nothing(8)}
		a.post(wr)
		a.sent(50, verbs.WCLocProtErr)
	})
	t.Run("memory is paged in on demand", func(t *testing.T) {
		a, b := s.connected(t, usual)
		if !b.ctx.Attr().Caps.Has(verbs.CapOnDemandPaging) {
			_, err := b.pd.AllocMR(4096, verbs.AccessLocalWrite|verbs.AccessOnDemand, verbs.MROptions{})
			require.ErrorIs(t, err, verbs.ErrUnsupported)
			t.Skip("the device pins all memory")
		}
		odp := b.ctx.Attr().ODP
		require.True(t, odp.General.Has(verbs.ODPSupported))
		before := verbs.PinnedBytes()
		const length = 8 << 20
		mr, err := b.pd.AllocMR(length, everyRight|verbs.AccessOnDemand, verbs.MROptions{})
		require.NoError(t, err)
		require.Equal(t, before, verbs.PinnedBytes())
		if odp.RC.Has(verbs.ODPWrite) {
			want := pattern(a.mr.Bytes()[:100_000], 5)
			a.post(a.write(mr.Addr()+3<<20, mr.RKey(), 100_000))
			a.sent(50, verbs.WCSuccess)
			a.placed(b)
			require.Equal(t, want, mr.Bytes()[3<<20:][:100_000])
		}
		if odp.RC.Has(verbs.ODPRead) {
			a.post(verbs.SendWR{
				ID: 4, Opcode: verbs.OpRead, Flags: verbs.SendSignaled, SGL: []verbs.SGE{a.mr.SGE(0, 4096)}, RemoteAddr: mr.Addr() + 5<<20, RKey: mr.RKey(),
			})
			a.sent(4, verbs.WCSuccess)
			require.Equal(t, make([]byte, 4096), a.mr.Bytes()[:4096])
		}
		slice, err := b.pd.RegisterMR(pattern(make([]byte, 5000), 4), verbs.AccessLocalWrite|verbs.AccessOnDemand)
		require.NoError(t, err)
		require.Equal(t, before, verbs.PinnedBytes())
		a.receive(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{a.mr.SGE(0, 5000)}})
		b.post(verbs.SendWR{ID: 2, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{slice.SGE(0, 5000)}})
		a.received(1, verbs.WCSuccess)
		b.sent(2, verbs.WCSuccess)
		require.Equal(t, slice.Bytes(), a.mr.Bytes()[:5000])
	})
	t.Run("atomics work on memory on demand", func(t *testing.T) {
		attr := s.open(t).A.Attr()
		if !attr.Caps.Has(verbs.CapOnDemandPaging|verbs.CapAtomics) || !attr.ODP.RC.Has(verbs.ODPAtomic) {
			t.Skip("the device pins all memory, or has no atomics")
		}
		conf := usual
		conf.memAccess, conf.qpAccess = everyRight|verbs.AccessOnDemand, everyRight
		a, b := s.connected(t, conf)
		at, key := b.mr.Addr()+1<<20, b.mr.RKey()
		word := []verbs.SGE{a.mr.SGE(2<<20, 8)}
		for _, wr := range []verbs.SendWR{
			{Opcode: verbs.OpFetchAdd, SGL: word, CompareAdd: 5, RemoteAddr: at, RKey: key},
			{Opcode: verbs.OpCompareSwap, SGL: word, CompareAdd: 5, Swap: 6, RemoteAddr: at, RKey: key},
		} {
			wr.ID, wr.Flags = 7, verbs.SendSignaled
			a.post(wr)
			a.sent(7, verbs.WCSuccess)
		}
		require.EqualValues(t, 6, binary.NativeEndian.Uint64(b.mr.Bytes()[1<<20:]))
		require.EqualValues(t, 5, binary.NativeEndian.Uint64(a.mr.Bytes()[2<<20:]))
	})
	t.Run("ATOMIC_WRITE and FLUSH work on memory on demand", func(t *testing.T) {
		caps := s.open(t).A.Attr().Caps
		if !caps.Has(verbs.CapOnDemandPaging) {
			t.Skip("the device pins all memory")
		}
		if !caps.Has(verbs.CapAtomicWrite | verbs.CapFlush) {
			t.Skip("the device has not both of them")
		}
		conf := usual
		conf.qpAccess = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessFlushGlobal
		conf.memAccess = conf.qpAccess | verbs.AccessOnDemand
		a, b := s.connected(t, conf)
		at, key := b.mr.Addr()+1<<20, b.mr.RKey()
		want := pattern(make([]byte, 8), 3)
		a.post(
			verbs.SendWR{Opcode: verbs.OpAtomicWrite, Flags: verbs.SendInline, Inline: [][]byte{want}, RemoteAddr: at, RKey: key},
			verbs.SendWR{
				ID: 7, Opcode: verbs.OpFlush, Flags: verbs.SendSignaled, RemoteAddr: at, RKey: key,
				Flush: &verbs.Flush{Type: verbs.FlushGlobal, Length: 1 << 20},
			},
		)
		a.sent(7, verbs.WCSuccess)
		require.Equal(t, want, b.mr.Bytes()[1<<20:][:8])
	})
	t.Run("huge pages are paged in on demand", func(t *testing.T) {
		a, b := s.connected(t, usual)
		if !a.ctx.Attr().Caps.Has(verbs.CapOnDemandPaging) {
			t.Skip("the device pins all memory")
		}
		pinned := verbs.PinnedBytes()
		const length, at, n = 2 << 20, 1 << 20, 100_000
		access := verbs.AccessLocalWrite | verbs.AccessOnDemand
		to, err := b.pd.AllocMR(length, access, verbs.MROptions{HugePages: true})
		require.NoError(t, err)
		mapped, err := a.pd.AllocMR(length, access, verbs.MROptions{HugePages: true})
		require.NoError(t, err)
		for _, mr := range []*verbs.MR{to, mapped} {
			if !ofHugePages(t, mr.Bytes()) {
				t.Skip("the host has no huge pages: /proc/sys/vm/nr_hugepages")
			}
		}
		from, err := a.pd.RegisterMR(mapped.Bytes(), access|verbs.AccessHugeTLB) // those of the caller
		require.NoError(t, err)
		require.Equal(t, pinned, verbs.PinnedBytes())
		want := pattern(from.Bytes()[at:][:n], 4)
		b.receive(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{to.SGE(at, n)}})
		a.post(verbs.SendWR{ID: 2, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{from.SGE(at, n)}})
		b.received(1, verbs.WCSuccess)
		a.sent(2, verbs.WCSuccess)
		require.Equal(t, want, to.Bytes()[at:][:n])
		require.NoError(t, from.Close())
	})
	t.Run("memory on demand gets other rights, and is pinned", func(t *testing.T) {
		a, b := s.connected(t, usual)
		if !b.ctx.Attr().Caps.Has(verbs.CapOnDemandPaging | verbs.CapReregister) {
			t.Skip("the device pins all memory, or cannot change regions")
		}
		pinned := verbs.PinnedBytes()
		mr, err := b.pd.AllocMR(8192, verbs.AccessLocalWrite|verbs.AccessOnDemand, verbs.MROptions{})
		require.NoError(t, err)
		for i, access := range []verbs.Access{
			verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessOnDemand, verbs.AccessLocalWrite | verbs.AccessRemoteWrite,
			verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessOnDemand, verbs.AccessLocalWrite | verbs.AccessOnDemand,
		} {
			addr := mr.Addr()
			require.NoError(t, mr.Reregister(verbs.MRUpdate{Access: access}, verbs.MRChangeAccess), i)
			require.Equal(t, addr, mr.Addr())
			counted := int64(0)
			if access&verbs.AccessOnDemand == 0 {
				counted = 8192
			}
			require.Equal(t, counted, verbs.PinnedBytes()-pinned)
			want := pattern(a.mr.Bytes()[:100], byte(i))
			a.post(a.write(addr+5000, mr.RKey(), 100))
			if access&verbs.AccessRemoteWrite == 0 {
				a.refused(50, verbs.WCRemAccessErr)
				break // the QP has failed
			}
			a.sent(50, verbs.WCSuccess)
			a.placed(b)
			require.Equal(t, want, mr.Bytes()[5000:][:100])
		}
	})
	t.Run("one MR has all memory", func(t *testing.T) {
		a, b := s.connected(t, usual)
		if !b.ctx.Attr().Caps.Has(verbs.CapRegisterAll) {
			_, err := b.pd.RegisterAll(verbs.AccessLocalWrite)
			require.ErrorIs(t, err, verbs.ErrUnsupported)
			t.Skip("the device does not page all memory")
		}
		pinned := verbs.PinnedBytes()
		all, err := b.pd.RegisterAll(verbs.AccessLocalWrite | verbs.AccessRemoteWrite)
		require.NoError(t, err)
		require.Equal(t, pinned, verbs.PinnedBytes())
		require.Nil(t, all.Bytes())
		require.Zero(t, all.Addr())
		_, err = b.pd.RegisterAll(verbs.AccessZeroBased)
		require.ErrorIs(t, err, verbs.ErrInvalid)
		require.ErrorIs(t, all.Reregister(verbs.MRUpdate{}, verbs.MRChangeAccess), verbs.ErrUnsupported)

		// Memory that was mapped later, and Go's, which is held where it is.
		later, err := b.pd.AllocMR(1<<20, verbs.AccessLocalWrite, verbs.MROptions{})
		require.NoError(t, err)
		mapped, message := later.Bytes(), pattern(make([]byte, 5000), 6)
		var held runtime.Pinner
		defer held.Unpin()
		held.Pin(&message[0])
		if b.ctx.Attr().Caps.Has(verbs.CapAdviseMR) {
			require.NoError(t, b.pd.AdviseMR(verbs.AdvicePrefetch, []verbs.SGE{all.SGEOf(message), all.SGEOf(mapped[:8])}))
		}
		want := pattern(a.mr.Bytes()[:4000], 5)
		a.post(a.write(all.SGEOf(mapped[70_000:]).Addr, all.RKey(), len(want)))
		a.sent(50, verbs.WCSuccess)
		a.placed(b)
		require.Equal(t, want, mapped[70_000:][:len(want)])

		a.receive(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{a.mr.SGE(0, len(message))}})
		b.receive(verbs.RecvWR{ID: 2, SGL: []verbs.SGE{all.SGEOf(mapped[:len(message)])}})
		send := verbs.SendWR{ID: 3, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{all.SGEOf(message)}}
		b.post(send)
		a.received(1, verbs.WCSuccess)
		b.sent(3, verbs.WCSuccess)
		require.Equal(t, message, a.mr.Bytes()[:len(message)])
		send.SGL = []verbs.SGE{a.mr.SGE(0, len(message))}
		a.post(send)
		b.received(2, verbs.WCSuccess)
		a.sent(3, verbs.WCSuccess)
		require.Equal(t, message, mapped[:len(message)])

		require.NoError(t, all.Close())
		a.post(a.write(all.SGEOf(mapped).Addr, all.RKey(), 8))
		a.refused(50, verbs.WCRemAccessErr)
	})
	for name, paged := range map[string]verbs.ODPOps{
		"a datagram comes from memory on demand": verbs.ODPSend, "a datagram goes to memory on demand": verbs.ODPRecv,
	} {
		t.Run(name, func(t *testing.T) {
			if attr := s.open(t).A.Attr(); !attr.Caps.Has(verbs.CapOnDemandPaging) || !attr.ODP.UD.Has(paged) {
				t.Skip("the device does not page that")
			}
			a, b := s.connected(t, usual)
			for _, end := range []*side{a, b} {
				end.other(verbs.QPTypeUD)
				end.toDatagramRTS()
			}
			from, to := a.mr, b.mr
			for end, mr := range map[*side]**verbs.MR{a: &from, b: &to} {
				if (end == a) == (paged == verbs.ODPSend) {
					var err error
					*mr, err = end.pd.AllocMR(end.conf.memory, verbs.AccessLocalWrite|verbs.AccessOnDemand, verbs.MROptions{})
					require.NoError(t, err)
				}
			}
			ah, err := a.pd.CreateAH(a.vectorTo(b))
			require.NoError(t, err)
			b.receive(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{to.SGE(3<<20, grhSize+100)}})
			want := pattern(from.Bytes()[3<<20:][:100], 4)
			a.post(verbs.SendWR{
				ID: 2, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{from.SGE(3<<20, 100)},
				Datagram: &verbs.Datagram{AH: ah, QPN: b.qp.Num(), QKey: datagramQKey},
			})
			a.sent(2, verbs.WCSuccess)
			b.received(1, verbs.WCSuccess)
			require.Equal(t, want, to.Bytes()[3<<20+grhSize:][:100])
		})
	}
	t.Run("messages and WRITEs go between regions of relaxed ordering", func(t *testing.T) {
		a, b := s.connected(t, usual)
		relax(a, b)
		theirs := make([]byte, 100_000) // not of AllocMR: another process cannot WRITE there on the software HCA
		slice, err := b.pd.RegisterMR(theirs, verbs.AccessLocalWrite|verbs.AccessRelaxedOrdering)
		require.NoError(t, err)
		for i, n := range []int{1, 5000, 100_000} { // a packet of a byte, and many
			want := pattern(a.mr.Bytes()[:n], byte(2*i+1))
			b.receive(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{b.mr.SGE(0, n)}}, verbs.RecvWR{ID: 2, SGL: []verbs.SGE{slice.SGE(0, n)}})
			for id := range uint64(2) {
				a.post(verbs.SendWR{ID: id, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{a.mr.SGE(0, n)}})
				require.EqualValues(t, n, b.received(1+id, verbs.WCSuccess).ByteLen)
				a.sent(id, verbs.WCSuccess)
			}
			require.Equal(t, want, b.mr.Bytes()[:n])
			require.Equal(t, want, theirs[:n])
			want = pattern(a.mr.Bytes()[:n], byte(2*i+2))
			a.post(a.write(b.mr.Addr(), b.mr.RKey(), n))
			a.sent(50, verbs.WCSuccess)
			a.placed(b)
			require.Equal(t, want, b.mr.Bytes()[:n])
		}
	})
	t.Run("a datagram goes between regions of relaxed ordering", func(t *testing.T) {
		a, b := s.datagrams(t)
		relax(a, b)
		ah, err := a.pd.CreateAH(a.vectorTo(b))
		require.NoError(t, err)
		b.receive(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{b.mr.SGE(0, grhSize+1000)}})
		want := pattern(a.mr.Bytes()[:1000], 4)
		a.post(verbs.SendWR{
			ID: 2, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{a.mr.SGE(0, 1000)},
			Datagram: &verbs.Datagram{AH: ah, QPN: b.qp.Num(), QKey: datagramQKey},
		})
		a.sent(2, verbs.WCSuccess)
		require.EqualValues(t, grhSize+1000, b.received(1, verbs.WCSuccess).ByteLen)
		require.Equal(t, want, b.mr.Bytes()[grhSize:][:1000])
	})
	t.Run("a device is told what memory it will use", func(t *testing.T) {
		a, _ := s.sides(t, usual)
		list := []verbs.SGE{a.mr.SGE(100, 10)}
		if !a.ctx.Attr().Caps.Has(verbs.CapAdviseMR) {
			require.ErrorIs(t, a.pd.AdviseMR(verbs.AdvicePrefetch, list), verbs.ErrUnsupported)
			t.Skip("the device wants to know nothing")
		}
		wrong := func(advice verbs.Advice, list []verbs.SGE) { // by which no limit of the process is at fault
			t.Helper()
			err := a.pd.AdviseMR(advice, list)
			require.ErrorIs(t, err, verbs.ErrInvalid)
			var e *verbs.Error
			require.ErrorAs(t, err, &e)
			require.Empty(t, e.Hint)
			limit, _ := e.Explain()
			require.Equal(t, verbs.LimitUnknown, limit)
		}
		wrong(verbs.AdvicePrefetch, list) // it is pinned
		mr, err := a.pd.AllocMR(1<<20, everyRight|verbs.AccessOnDemand, verbs.MROptions{})
		require.NoError(t, err)
		slice, err := a.pd.RegisterMR(make([]byte, 5000), verbs.AccessOnDemand)
		require.NoError(t, err)
		for _, advice := range []verbs.Advice{verbs.AdvicePrefetch, verbs.AdvicePrefetchWrite, verbs.AdvicePrefetchNoFault} {
			require.NoError(t, a.pd.AdviseMR(advice, []verbs.SGE{mr.SGE(1, 1<<20-1), mr.SGE(5, 0), mr.SGE(5, 1)}))
			if advice != verbs.AdvicePrefetchWrite {
				require.NoError(t, a.pd.AdviseMR(advice, []verbs.SGE{slice.SGE(1, 100)}))
			}
		}
		wrong(verbs.AdvicePrefetchWrite, []verbs.SGE{slice.SGE(1, 100)})
		heap, err := a.pd.RegisterMR(make([]byte, 5000), verbs.AccessLocalWrite|verbs.AccessOnDemand)
		require.NoError(t, err)
		require.NoError(t, a.pd.AdviseMR(verbs.AdvicePrefetchWrite, []verbs.SGE{heap.SGE(0, 5000)}))
		wrong(9, []verbs.SGE{mr.SGE(0, 1)})
		wrong(verbs.AdvicePrefetch, nil)
		beyond := mr.SGE(1<<20-1, 1)
		beyond.Length++
		wrong(verbs.AdvicePrefetch, []verbs.SGE{beyond})
		require.NoError(t, mr.Close())
		wrong(verbs.AdvicePrefetch, []verbs.SGE{beyond})
	})
}
