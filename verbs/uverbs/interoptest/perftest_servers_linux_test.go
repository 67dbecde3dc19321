package interoptest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/pingpong"
	"github.com/stretchr/testify/require"
)

func TestPerftestServerHoldsWhatWeWrite(t *testing.T) {
	cDevice(t)
	for name, service := range map[string]verbs.QPType{"RC": verbs.QPTypeRC, "UC": verbs.QPTypeUC} {
		t.Run(name, func(t *testing.T) { testServerThatIsWritten(t, name, service) })
	}
}

func testServerThatIsWritten(t *testing.T, name string, service verbs.QPType) {
	const size = 1 << 16
	p := newPerftestOf(t, service, 0)
	c := p.dial(t, 1, "ib_write_bw", "-c", name, "-s", strconv.Itoa(size), "-n", "5")
	want := c.peek(t, p.theirs.Addr-size, 2*size) // what it would send is before what we write
	for i, w := range []struct {
		name   string
		at     int
		pieces []int
		inline bool
	}{
		{"all", 0, []int{size}, false},
		{"a byte", 12345, []int{1}, false},
		{"three pieces", 4093, []int{1, 4999, 333}, false},
		{"inline", 777, []int{40, 3}, true},
		{"the last bytes", size - 1500, []int{1500}, false},
		{"nothing", 100, []int{0}, false},
	} {
		if service == verbs.QPTypeUC && w.name == "all" {
			continue // of so many packets rxe might lose one, and UC does not send it again
		}
		t.Log(w.name)
		mem := pingpong.Fill(p.mr.Bytes(), 31*i+1)
		wr := verbs.SendWR{Opcode: verbs.OpWrite}
		from := 5
		for _, n := range w.pieces {
			if w.inline {
				wr.Flags |= verbs.SendInline
				wr.Inline = append(wr.Inline, mem[from:from+n])
			} else {
				wr.SGL = append(wr.SGL, p.mr.SGE(from, n))
			}
			copy(want[size+w.at+from-5:], mem[from:from+n])
			from += n
		}
		wc := p.do(t, w.at, wr)
		require.Equal(t, verbs.WCSuccess, wc.Status)
		require.Equal(t, verbs.WCWrite, wc.Opcode)
		require.Eventually(t, func() bool { // a completion of UC says that it was sent
			return bytes.Equal(want, c.peek(t, p.theirs.Addr-size, 2*size))
		}, 20*time.Second, time.Millisecond, "its memory after %q", w.name)
	}
	p.endAsClient(t, c)
}

func TestPerftestServerGivesUsWhatItHolds(t *testing.T) {
	cDevice(t)
	for name, rounds := range map[string]int{"ib_read_bw": 1, "ib_read_lat": 2} {
		t.Run(name, func(t *testing.T) { testServerThatIsRead(t, name, rounds) })
	}
}

func testServerThatIsRead(t *testing.T, name string, rounds int) {
	const size = 1 << 16
	p := newPerftest(t, 0)
	c := p.dial(t, rounds, name, "-s", strconv.Itoa(size), "-n", "5")
	held := c.peek(t, p.theirs.Addr, size)
	require.NotEqual(t, make([]byte, 64), held[:64], "it starts with random bytes")
	for i, r := range []struct{ at, into, length int }{
		{0, 0, size}, {12345, 3, 1}, {4093, 4001, 5000}, {size - 1500, 70_000, 1500}, {100, 0, 0}, {0, size, size},
	} {
		want := pingpong.Fill(make([]byte, perftestMemory), i)
		copy(p.mr.Bytes(), want)
		copy(want[r.into:], held[r.at:r.at+r.length])
		wc := p.do(t, r.at, verbs.SendWR{Opcode: verbs.OpRead, SGL: []verbs.SGE{p.mr.SGE(r.into, r.length)}})
		require.Equal(t, verbs.WCSuccess, wc.Status)
		require.Equal(t, verbs.WCRead, wc.Opcode)
		require.EqualValues(t, r.length, wc.ByteLen)
		require.True(t, bytes.Equal(want, p.mr.Bytes()), "our memory after %+v", r)
		held = pingpong.Fill(held, 17*i) // the next READ gets something new
		c.poke(t, p.theirs.Addr, held)
	}
	require.Equal(t, held, c.peek(t, p.theirs.Addr, size), "READ changes nothing")
	p.endAsClient(t, c)
}

func TestPerftestServerCountsWithUs(t *testing.T) {
	cDevice(t)
	for name, rounds := range map[string]int{"ib_atomic_bw": 1, "ib_atomic_lat": 2} {
		t.Run(name, func(t *testing.T) { testServerThatCounts(t, name, rounds) })
	}
}

func testServerThatCounts(t *testing.T, name string, rounds int) {
	p := newPerftest(t, 0)
	c := p.dial(t, rounds, name, "-A", "FETCH_AND_ADD", "-n", "5")
	at := 64
	addr := p.theirs.Addr + uint64(at)
	before := c.peek(t, addr-8, 24)
	atomic := func(op verbs.Opcode, compareAdd, swap uint64) (fetched uint64) {
		wc := p.do(t, at, verbs.SendWR{Opcode: op, SGL: []verbs.SGE{p.mr.SGE(8, 8)}, CompareAdd: compareAdd, Swap: swap})
		require.Equal(t, verbs.WCSuccess, wc.Status)
		return binary.NativeEndian.Uint64(p.mr.Bytes()[8:])
	}
	first := c.word(t, addr)
	require.Equal(t, first, atomic(verbs.OpFetchAdd, 0, 0), "a word is read through the device")
	require.Equal(t, first, atomic(verbs.OpFetchAdd, 5, 0))
	require.Equal(t, first+5, c.word(t, addr))
	for i := range uint64(100) {
		require.Equal(t, first+5+2*i, atomic(verbs.OpFetchAdd, 2, 0))
	}
	now := first + 205
	require.Equal(t, now, c.word(t, addr))
	require.Equal(t, now, atomic(verbs.OpCompareSwap, now-1, 42), "compared with something else")
	require.Equal(t, now, c.word(t, addr), "which changes nothing")
	require.Equal(t, now, atomic(verbs.OpCompareSwap, now, 1<<64-1))
	require.Equal(t, uint64(1<<64-1), c.word(t, addr))
	require.Equal(t, uint64(1<<64-1), atomic(verbs.OpFetchAdd, 3, 0))
	require.Equal(t, uint64(2), atomic(verbs.OpFetchAdd, 0, 0), "it has wrapped around")
	binary.NativeEndian.PutUint64(before[8:], 2)
	require.Equal(t, before, c.peek(t, addr-8, 24), "the words beside it stay")
	p.endAsClient(t, c)
}

func TestPerftestServersRefuseWhatTheyDoNotMeasure(t *testing.T) {
	cDevice(t)
	for name, ops := range map[string][]verbs.Opcode{
		"ib_write_bw":  {verbs.OpRead, verbs.OpFetchAdd},
		"ib_read_bw":   {verbs.OpWrite, verbs.OpCompareSwap},
		"ib_atomic_bw": {verbs.OpRead, verbs.OpWrite},
	} {
		for _, op := range ops {
			t.Run(fmt.Sprintf("%s, %v", name, op), func(t *testing.T) {
				p := newPerftest(t, 0)
				c := p.dial(t, 1, name, "-n", "5")
				held := c.peek(t, p.theirs.Addr, perftestCycle)
				ours := bytes.Clone(pingpong.Fill(p.mr.Bytes(), 3))
				require.NotEqual(t, ours[:8], held[:8], "a WRITE or READ would show")
				word := binary.NativeEndian.Uint64(held)
				require.NotZero(t, word, "it starts with random bytes, and a FETCH_ADD would show")
				wc := p.do(t, 0, verbs.SendWR{Opcode: op, SGL: []verbs.SGE{p.mr.SGE(0, 8)}, CompareAdd: word, Swap: ^word})
				// The kernel's driver has one status for two of the specification.
				require.Contains(t, []verbs.WCStatus{verbs.WCRemInvReqErr, verbs.WCRemOpErr, verbs.WCRemAccessErr}, wc.Status)
				require.True(t, bytes.Equal(ours, p.mr.Bytes()), "nothing has come")
				require.Equal(t, held, c.peek(t, p.theirs.Addr, perftestCycle), "and nothing gone")
				p.endAsClient(t, c)
			})
		}
	}
}
