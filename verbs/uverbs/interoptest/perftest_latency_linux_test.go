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

// ib_write_lat is the one program that looks at what arrives: each side writes
// when the last byte of its memory says that the peer's message has come. The
// server begins. The C program's messages are zeros but for that byte.
func TestPerftestPlaysWithOurWrites(t *testing.T) {
	cDevice(t)
	for _, size := range []int{1, 64, 5000, 65_536} {
		for _, dials := range []bool{true, false} {
			t.Run(fmt.Sprintf("%d bytes, we dial %v", size, dials), func(t *testing.T) {
				const n = 300 // the number goes around once
				p := newPerftest(t, verbs.AccessRemoteWrite)
				// The peer's messages arrive at the start, ours
				// go out from the end.
				theirs, ours := p.mr.Bytes()[:size], p.mr.Bytes()[perftestMemory-size:]
				scribble := func(number int) { // so that every byte of the next message shows
					pingpong.Fill(theirs[:size-1], 5*number)
				}
				arrived := func(number int) {
					want := make([]byte, size)
					want[size-1] = byte(number)
					end := time.Now().Add(20 * time.Second)
					// Ends with the peer's message, or the time.
					for theirs[size-1] != byte(number) || !bytes.Equal(theirs, want) {
						require.True(t, time.Now().Before(end), "message %d has not come as it should", number)
						pause()
					}
				}
				scribble(0)
				args := []string{"-s", strconv.Itoa(size), "-n", strconv.Itoa(n)}
				var c *perftestProgram
				if dials {
					c = p.dial(t, 2, "ib_write_lat", args...)
				} else {
					c = p.serve(t, 2, "ib_write_lat", args...)
				}
				write := func(number int) {
					// the program waits for this message, and still has the one
					// before
					if number > 1 && number%30 == 0 {
						require.True(t, bytes.Equal(ours, c.peek(t, p.theirs.Addr, size)), "its memory before message %d", number)
					}
					scribble(number)
					pingpong.Fill(ours, 3*number)[size-1] = byte(number)
					wc := p.do(t, 0, verbs.SendWR{Opcode: verbs.OpWrite, SGL: []verbs.SGE{p.mr.SGE(perftestMemory-size, size)}})
					require.Equal(t, verbs.WCSuccess, wc.Status)
				}
				for i := 1; i <= n; i++ {
					if dials {
						arrived(i)
						write(i)
					} else {
						write(i)
						arrived(i)
					}
				}
				out, err := c.wait()
				require.NoError(t, err)
				// inf: it has failed to measure the frequency of the processor
				require.Regexp(t, fmt.Sprintf(`(?m)^ *%d +%d +(\d|inf)`, size, n), out)
			})
		}
	}
}
