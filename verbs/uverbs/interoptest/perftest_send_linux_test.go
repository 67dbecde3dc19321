package interoptest

import (
	"bytes"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/pingpong"
	"github.com/stretchr/testify/require"
)

// perftestSends are messages of each service. Those of UD are of such sizes that the receives of
// the C programs, which are a message apart, have room for the GRH.
var perftestSends = []struct {
	service string
	typ     verbs.QPType
	size, n int
}{

	{"RC", verbs.QPTypeRC, 1, 70}, {"RC", verbs.QPTypeRC, 2048, 5}, {"RC", verbs.QPTypeRC, 65_536, 5},

	{"UC", verbs.QPTypeUC, 64, 20}, {"UC", verbs.QPTypeUC, 5120, 5},

	{"UD", verbs.QPTypeUD, 24, 20}, {"UD", verbs.QPTypeUD, 984, 5},
}

// header is what a receive has in front of its message.
func (p *perftest) header() int {
	if p.service == verbs.QPTypeUD {
		return pingpong.GRHSize
	}
	return 0
}

// receiveAt is how far behind the address that the C program names it receives: what a cache line
// has before it is for the GRH.
func (p *perftest) receiveAt() uint64 {
	if p.service == verbs.QPTypeUD {
		return perftestCacheLine
	}
	return 0
}

// postReceives posts receives of messages, each with a place of its own in the
// first half of our memory.
func (p *perftest) postReceives(t *testing.T, n, size int) {
	t.Helper()
	var wrs []verbs.RecvWR
	for i := range n {
		wrs = append(wrs, verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{p.mr.SGE(p.place(i, size), p.header()+size)}})
	}
	_, err := p.qp.PostRecv(wrs)
	require.NoError(t, err)
}

// place is where a receive is. There is room for as many as a test looks at; later ones take the
// places of earlier ones.
func (p *perftest) place(i, size int) int {
	size += p.header()
	return i % (perftestMemory / 2 / size) * size
}

// received looks at a message that is to be this one.
func (p *perftest) received(t *testing.T, wc verbs.WC, n int, message []byte) {
	t.Helper()
	require.Equal(t, verbs.WCSuccess, wc.Status)
	require.Equal(t, verbs.WCRecv, wc.Opcode)
	require.EqualValues(t, n, wc.ID, "in the order in which they were posted")
	require.EqualValues(t, p.header()+len(message), wc.ByteLen)
	if p.service == verbs.QPTypeUD {
		require.Equal(t, p.theirs.QPN, wc.SrcQPN)
		require.Equal(t, p.path.Global, wc.Flags&verbs.WCGRH != 0)
	}
	at := p.place(n, len(message)) + p.header()
	require.True(t, bytes.Equal(message, p.mr.Bytes()[at:at+len(message)]), "message %d", n)
}

func TestPerftestClientSendsToUs(t *testing.T) {
	cDevice(t)
	for _, tr := range perftestSends {
		t.Run(fmt.Sprintf("%s, %d of %d bytes", tr.service, tr.n, tr.size), func(t *testing.T) {
			p := newPerftestOf(t, tr.typ, 0)
			p.postReceives(t, tr.n, tr.size)
			c := p.serve(t, 1, "ib_send_bw", "-c", tr.service, "-s", strconv.Itoa(tr.size), "-n", strconv.Itoa(tr.n))
			half := max(tr.size, perftestCycle) // what it sends is before what it receives
			sent := c.peek(t, p.theirs.Addr-uint64(half), half)
			p.await(t) // it begins
			places := perftestPlaces(tr.size, tr.n)
			for i := range tr.n {
				from := places[i%len(places)]
				wc := p.next(t, p.recvCQ)
				// each message of the C program at a place is the same
				p.received(t, wc, i, sent[from:from+tr.size])
			}
			require.Regexp(t, fmt.Sprintf(`(?m)^ *%d +%d +\d`, tr.size, tr.n), p.leave(t, c))
		})
	}
}

func TestPerftestServerReceivesWhatWeSend(t *testing.T) {
	cDevice(t)
	for _, tr := range perftestSends {
		t.Run(fmt.Sprintf("%s, %d of %d bytes", tr.service, tr.n, tr.size), func(t *testing.T) {
			p := newPerftestOf(t, tr.typ, 0)
			c := p.dial(t, 1, "ib_send_bw", "-c", tr.service, "-s", strconv.Itoa(tr.size), "-n", strconv.Itoa(tr.n))
			p.await(t) // it has posted its receives
			places := perftestPlaces(tr.size, tr.n)
			want := map[int][]byte{}
			for i := range tr.n {
				message := pingpong.Fill(p.mr.Bytes()[:tr.size], 3*i)
				wc := p.do(t, 0, verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{p.mr.SGE(0, tr.size)}})
				require.Equal(t, verbs.WCSuccess, wc.Status)
				require.Equal(t, verbs.WCSend, wc.Opcode)
				want[places[i%len(places)]] = bytes.Clone(message)
			}
			for at, message := range want {
				require.Eventually(t, func() bool {
					return bytes.Equal(message, c.peek(t, p.theirs.Addr+p.receiveAt()+uint64(at), tr.size))
				}, 20*time.Second, time.Millisecond, "at %d", at)
			}
			require.Regexp(t, fmt.Sprintf(`(?m)^ *%d +%d +\d`, tr.size, tr.n), p.leave(t, c), "it has seen all")
		})
	}
}

// ib_send_lat sends the next message when ours has come. It polls: with events (-e) it takes that
// of one of its CQs for one of the other now and then, and waits for ever.
func TestPerftestPlaysWithOurSends(t *testing.T) {
	cDevice(t)
	const n = 60
	for _, tr := range perftestSends {
		for _, dials := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, %d bytes, we dial %v", tr.service, tr.size, dials), func(t *testing.T) {
				p := newPerftestOf(t, tr.typ, 0)
				p.postReceives(t, n, tr.size)
				args := []string{"-c", tr.service, "-s", strconv.Itoa(tr.size), "-n", strconv.Itoa(n)}
				start := p.serve
				if dials {
					start = p.dial
				}
				c := start(t, 1, "ib_send_lat", args...)
				theirs := c.peek(t, p.theirs.Addr-uint64(max(tr.size, perftestCycle)), tr.size)
				p.await(t) // both have posted their receives
				ours := p.mr.Bytes()[perftestMemory-tr.size:]
				send := func(i int) {
					// it waits for this message, and still has the one before
					if i > 0 && i%20 == 0 {
						require.True(t, bytes.Equal(ours, c.peek(t, p.theirs.Addr+p.receiveAt(), tr.size)), "its memory before message %d", i)
					}
					pingpong.Fill(ours, 3*i)
					wc := p.do(t, 0, verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{p.mr.SGE(perftestMemory-tr.size, tr.size)}})
					require.Equal(t, verbs.WCSuccess, wc.Status)
				}
				for i := range n {
					if dials {
						send(i)
					}
					p.received(t, p.next(t, p.recvCQ), i, theirs)
					clear(p.mr.Bytes()[:perftestMemory/2])
					if !dials {
						send(i)
					}
				}
				// an emulated clock may have no frequency
				require.Regexp(t, fmt.Sprintf(`(?m)^ *%d +%d +(\d|inf)`, tr.size, n), p.leave(t, c))
			})
		}
	}
}
