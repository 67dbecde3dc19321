package harness

import (
	"fmt"
	"io"
	"os"
	"time"
)

// progress tells a waiting user how far the run is, on stderr: one line that
// rewrites itself on a terminal, else a line for each test.
type progress struct {
	out      io.Writer
	terminal bool
	began    time.Time
	rounds   int // of all tests and transports
	done     int
}

func newProgress(out io.Writer, rounds int) *progress {
	p := &progress{out: out, began: time.Now(), rounds: max(rounds, 1)}
	if f, ok := out.(*os.File); ok {
		if info, err := f.Stat(); err == nil {
			p.terminal = info.Mode()&os.ModeCharDevice != 0
		}
	}
	return p
}

// test says that a test begins.
func (p *progress) test(n, of int, title string) {
	if !p.terminal {
		fmt.Fprintf(p.out, "[%d/%d] %s\n", n, of, title)
	}
}

// round says that a round of a transport begins.
func (p *progress) round(n, of int, title string, round, rounds int, transport string) {
	p.done++
	if !p.terminal {
		return
	}
	const clearLine = "\r\x1b[K"
	fmt.Fprintf(p.out, "%s%3d%% [%d/%d] %s, round %d of %d, %s",
		clearLine, 100*(p.done-1)/p.rounds, n, of, title, round, rounds, transport)
}

// finish says that all is done.
func (p *progress) finish() {
	took := time.Since(p.began).Round(100 * time.Millisecond)
	if p.terminal {
		fmt.Fprintf(p.out, "\r\x1b[K")
	}
	fmt.Fprintf(p.out, "measured for %v\n", took)
}
