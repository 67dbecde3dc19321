package interoptest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"strconv"
	"testing"
	"time"

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
		t.Run(fmt.Sprintf("RC, %d of %d bytes", tr.n, tr.size), func(t *testing.T) {
			testClientThatWrites(t, "RC", verbs.QPTypeRC, tr.size, tr.n)
		})
	}
	for size, n := range map[int]int{64: 70, 4096: 5} {
		t.Run(fmt.Sprintf("UC, %d of %d bytes", n, size), func(t *testing.T) {
			testClientThatWrites(t, "UC", verbs.QPTypeUC, size, n)
		})
	}
}

func testClientThatWrites(t *testing.T, name string, service verbs.QPType, size, n int) {
	p := newPerftestOf(t, service, verbs.AccessRemoteWrite)
	c := p.serve(t, 1, "ib_write_bw", "-c", name, "-s", strconv.Itoa(size), "-n", strconv.Itoa(n))
	report := p.clientEnds(t, size, n)
	half := max(size, perftestCycle) // what it sends is before what it lets us write
	sent := c.peek(t, p.theirs.Addr-uint64(half), half)
	want := make([]byte, perftestMemory)
	for _, at := range perftestPlaces(size, n) {
		copy(want[at:at+size], sent[at:])
	}
	require.NotEqual(t, make([]byte, perftestMemory), want, "it sends random bytes")
	require.Eventually(t, func() bool { return bytes.Equal(want, p.mr.Bytes()) }, 20*time.Second, time.Millisecond,
		"of UC it knows only that they were sent")
	require.Regexp(t, report.line(), p.leave(t, c), "it prints what it told us")
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

// The programs of latency stay at the first place.
func TestPerftestClientReadsOurMemoryAndWaits(t *testing.T) {
	cDevice(t)
	for _, tr := range []struct{ size, n int }{{1, 5}, {100, 40}, {65_536, 5}} {
		t.Run(fmt.Sprintf("%d of %d bytes", tr.n, tr.size), func(t *testing.T) {
			p := newPerftest(t, verbs.AccessRemoteRead)
			want := bytes.Clone(pingpong.Fill(p.mr.Bytes(), tr.size))
			c := p.serve(t, 2, "ib_read_lat", "-s", strconv.Itoa(tr.size), "-n", strconv.Itoa(tr.n))
			p.latencyClientEnds(t, c, tr.size, tr.n, func() {
				got := c.peek(t, p.theirs.Addr-uint64(max(tr.size, perftestCycle)), tr.size)
				require.True(t, bytes.Equal(want[:tr.size], got))
				require.True(t, bytes.Equal(want, p.mr.Bytes()), "ours stays")
			})
		})
	}
}

func TestPerftestClientAddsInOurMemoryAndWaits(t *testing.T) {
	const n = 50
	p := newPerftest(t, verbs.AccessRemoteAtomic)
	want := bytes.Clone(pingpong.Fill(p.mr.Bytes(), n))
	first := binary.NativeEndian.Uint64(want)
	binary.NativeEndian.PutUint64(want, first+n)
	c := p.serve(t, 2, "ib_atomic_lat", "-A", "FETCH_AND_ADD", "-n", strconv.Itoa(n))
	p.latencyClientEnds(t, c, 8, n, func() {
		require.Equal(t, first+n-1, c.word(t, p.theirs.Addr-perftestCycle), "fetched by the last one")
		require.True(t, bytes.Equal(want, p.mr.Bytes()))
	})
}

// latencyClientEnds waits until the C client is done, looks, and sees it off. It stays until we have
// answered, and tells us nothing of what it has measured.
func (p *perftest) latencyClientEnds(t *testing.T, c *perftestProgram, size, n int, look func()) {
	t.Helper()
	_, err := io.ReadFull(p, make([]byte, len(p.mine.text()))) // ends as in exchange
	require.NoError(t, err)
	look()
	_, err = p.Write(p.mine.text())
	require.NoError(t, err)
	require.NoError(t, p.done())
	out, err := c.wait()
	require.NoError(t, err)
	// an emulated clock may have no frequency
	require.Regexp(t, fmt.Sprintf(`(?m)^ *%d +%d +(\d|inf)`, size, n), out)
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
