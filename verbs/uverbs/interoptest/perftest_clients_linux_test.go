package interoptest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strconv"
	"testing"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/pingpong"
	"github.com/stretchr/testify/require"
)

// perftestStep is how far a message of size bytes is from the one before it.
func perftestStep(size int) int {
	return (size + perftestCacheLine - 1) / perftestCacheLine * perftestCacheLine
}

// perftestPlaces are the offsets of the messages in both sides' memory.
func perftestPlaces(size, n int) (places []int) {
	if size > perftestCycle/2 {
		return []int{0}
	}
	step := perftestStep(size)
	for i := range min(n, perftestCycle/step) {
		places = append(places, i*step)
	}
	return places
}

var perftestTransfers = []struct{ size, n int }{{1, 5}, {64, 64}, {64, 7}, {100, 40}, {4096, 5}, {65_536, 20}}

// clientEnds waits until the C client is done, and returns what it measured; it
// stays until we let it go. Its rates are 0 where it makes nothing of the
// processor's clock.
func (p *perftest) clientEnds(t *testing.T, size, n int) perftestReport {
	t.Helper()
	p.await(t)
	report, err := p.report(perftestReport{})
	require.NoError(t, err)
	require.EqualValues(t, size, report.Size)
	require.EqualValues(t, n, report.Iterations)
	return report
}

func TestPerftestClientWritesIntoOurMemory(t *testing.T) {
	cDevice(t)
	for _, tr := range perftestTransfers {
		t.Run(fmt.Sprintf("%d of %d bytes", tr.n, tr.size), func(t *testing.T) {
			p := newPerftest(t, verbs.AccessRemoteWrite)
			c := p.serve(t, 1, "ib_write_bw", "-s", strconv.Itoa(tr.size), "-n", strconv.Itoa(tr.n))
			report := p.clientEnds(t, tr.size, tr.n)
			half := max(tr.size, perftestCycle) // what it sends is before what it lets us write
			sent := c.peek(t, p.theirs.Addr-uint64(half), half)
			want := make([]byte, perftestMemory)
			for _, at := range perftestPlaces(tr.size, tr.n) {
				copy(want[at:at+tr.size], sent[at:])
			}
			require.NotEqual(t, make([]byte, perftestMemory), want, "it sends random bytes")
			require.True(t, bytes.Equal(want, p.mr.Bytes()))
			require.Regexp(t, report.line(), p.leave(t, c), "it prints what it told us")
		})
	}
}

func TestPerftestClientReadsOurMemory(t *testing.T) {
	cDevice(t)
	for _, tr := range perftestTransfers {
		t.Run(fmt.Sprintf("%d of %d bytes", tr.n, tr.size), func(t *testing.T) {
			p := newPerftest(t, verbs.AccessRemoteRead)
			pingpong.Fill(p.mr.Bytes(), tr.size)
			c := p.serve(t, 1, "ib_read_bw", "-s", strconv.Itoa(tr.size), "-n", strconv.Itoa(tr.n))
			report := p.clientEnds(t, tr.size, tr.n)
			half := max(tr.size, perftestCycle)
			got := c.peek(t, p.theirs.Addr-uint64(half), half)
			for _, at := range perftestPlaces(tr.size, tr.n) {
				require.True(t, bytes.Equal(p.mr.Bytes()[at:at+tr.size], got[at:at+tr.size]), "at %d", at)
			}
			require.True(t, bytes.Equal(pingpong.Fill(make([]byte, perftestMemory), tr.size), p.mr.Bytes()), "ours stays")
			require.Regexp(t, report.line(), p.leave(t, c), "it prints what it told us")
		})
	}
}

func TestPerftestClientAddsInOurMemory(t *testing.T) {
	cDevice(t)
	for _, n := range []int{5, 64, 1000} {
		t.Run(fmt.Sprintf("%d times", n), func(t *testing.T) {
			p := newPerftest(t, verbs.AccessRemoteAtomic)
			want := pingpong.Fill(p.mr.Bytes(), n)
			want = bytes.Clone(want)
			places := perftestPlaces(8, n)
			last := make([]uint64, len(places)) // what the last FETCH_ADD there fetched
			for i := range n {
				word := want[places[i%len(places)]:]
				last[i%len(places)] = binary.NativeEndian.Uint64(word)
				binary.NativeEndian.PutUint64(word, last[i%len(places)]+1)
			}
			c := p.serve(t, 1, "ib_atomic_bw", "-A", "FETCH_AND_ADD", "-n", strconv.Itoa(n))
			report := p.clientEnds(t, 8, n)
			require.True(t, bytes.Equal(want, p.mr.Bytes()))
			for i, at := range places {
				require.Equal(t, last[i], c.word(t, p.theirs.Addr-perftestCycle+uint64(at)), "fetched at %d", at)
			}
			require.Regexp(t, report.line(), p.leave(t, c), "it prints what it told us")
		})
	}
}

func TestPerftestClientComparesInOurMemory(t *testing.T) {
	const n = 20
	p := newPerftest(t, verbs.AccessRemoteAtomic)
	want := bytes.Clone(pingpong.Fill(p.mr.Bytes(), n))
	c := p.serve(t, 1, "ib_atomic_bw", "-A", "CMP_AND_SWAP", "-n", strconv.Itoa(n))
	report := p.clientEnds(t, 8, n)
	for _, at := range perftestPlaces(8, n) {
		held := binary.NativeEndian.Uint64(want[at:])
		require.Equal(t, held, c.word(t, p.theirs.Addr-perftestCycle+uint64(at)), "fetched at %d", at)
		now := binary.NativeEndian.Uint64(p.mr.Bytes()[at:])
		require.Contains(t, []uint64{held, 0}, now, "as it was, or swapped")
		binary.NativeEndian.PutUint64(want[at:], now)
	}
	require.True(t, bytes.Equal(want, p.mr.Bytes()), "nothing else has changed")
	require.Regexp(t, report.line(), p.leave(t, c), "it prints what it told us")
}
