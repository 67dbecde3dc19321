// Rnetstat shows what running processes of the same user do with rnet, as top does for
// processes: a line for each session, the busiest first, as many as the terminal has. The
// processes need no code for it.
//
//	go run ./examples/rnetstat               all processes, each second
//	go run ./examples/rnetstat 1234          one process
//	go run ./examples/rnetstat -once         a page: listeners, sessions, streams
//	go run ./examples/rnetstat -json -once   for programs
//
// Keys: q ends it, s changes between sessions and streams, < and > choose the column by
// which is sorted, r reverses the order, / asks for a text that lines have to have, Escape
// forgets it, and space stops and goes on. Where its output is no terminal it prints a page
// each second.
//
// What the columns say:
//
//	OVER     the device: soft0 is shared memory
//	->, <-   the process has dialed the session, or accepted it
//	STREAMS  connections on it
//	IN, OUT  bytes a second that it has received and sent
//	MSG      messages a second, both ways; a Write is one for each 16 KiB
//	HIT      the share of waits that polling ended, without a sleep
//	STALL    how often a Write waited because the peer's ring was full
//	SPILL    pieces that were moved out of the ring for a reader that is slow
//	RING     the size of the receive ring
//	UNREAD   bytes of a stream that have arrived and were not read
//	WINDOW   bytes that may be sent on a stream before the peer reads
//
// A process is there as long as it has a session or a listener. One that has
// RNET_STATS=off in its environment, that belongs to another user, or that is
// in another network namespace is not; docs/observability.md says why.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/seed-b9b531af/ramjet/examples/internal/program"
	"github.com/seed-b9b531af/ramjet/rnet/inspect"
)

func main() { program.Main("rnetstat", rnetstat) }

func rnetstat(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("rnetstat", flag.ContinueOnError)
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "usage: rnetstat [flags] [pid ...]")
		flags.PrintDefaults()
	}
	asJSON := flags.Bool("json", false, "print JSON, a line for each look, for programs")
	once := flags.Bool("once", false, "look once")
	every := flags.Duration("every", time.Second, "how often to look")
	rounds := flags.Int("n", 0, "stop after so many `looks`; 0: never")
	streams := flags.Int("streams", 20, "show so many streams of each process, those with the most traffic first")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *every <= 0 {
		return errors.New("-every must be positive")
	}
	var pids []int
	for _, arg := range flags.Args() {
		pid, err := strconv.Atoi(arg)
		if err != nil || pid <= 0 {
			return fmt.Errorf("%q is no process id", arg)
		}
		pids = append(pids, pid)
	}
	if *once {
		*rounds = 1
	}
	if *rounds == 0 && !*asJSON && interactive(out) {
		return watch(ctx, out.(*os.File), pids, *every)
	}
	w := &screen{out: out, streams: *streams}
	encoder := json.NewEncoder(out)
	for round := 1; ; round++ {
		l, err := takeLook(ctx, pids)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if *asJSON {
			err = encoder.Encode(l)
		} else {
			err = w.show(l)
		}
		if err != nil || round == *rounds {
			return err
		}
		select { // ended by the clock, or an interrupt
		case <-time.After(*every):
		case <-ctx.Done():
			return nil
		}
	}
}

// look is what was seen at one moment; what -json prints.
type look struct {
	Time      time.Time `json:"time"`
	Processes []process `json:"processes"`
}

// process is one of them.
type process struct {
	PID      int               `json:"pid"` // as this program sees it, 0 if it does not
	Error    string            `json:"error,omitempty"`
	Snapshot *inspect.Snapshot `json:"snapshot,omitempty"` // what it told
}

// takeLook asks the processes called for, or all.
func takeLook(ctx context.Context, pids []int) (*look, error) {
	list, err := inspect.Processes(ctx)
	if err != nil {
		return nil, err
	}
	l := &look{Time: time.Now(), Processes: []process{}}
	for i := range list {
		p := &list[i]
		if len(pids) > 0 && !slices.Contains(pids, p.PID) {
			continue
		}
		if p.Err != nil {
			l.Processes = append(l.Processes, process{PID: p.PID, Error: p.Err.Error()})
			continue
		}
		l.Processes = append(l.Processes, process{PID: p.PID, Snapshot: &p.Snapshot})
	}
	if len(pids) > 0 && len(l.Processes) == 0 {
		return nil, fmt.Errorf("process %v tells nothing: it has neither session nor listener of rnet, is another user's, or has RNET_STATS=off", pids)
	}
	return l, nil
}
