// Rnetstat shows what running processes of the same user do with rnet, as top does for
// processes: a line for each session, the busiest first, as many as the terminal has. The
// processes need no code for it.
//
//	go run ./examples/rnetstat               all processes, each second
//	go run ./examples/rnetstat 1234          one process
//	go run ./examples/rnetstat -once         a page: listeners, sessions, streams
//	go run ./examples/rnetstat -json -once   for programs
//
// Where its output is no terminal it prints a page each second. With -help it explains the
// keys and the columns.
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

const usage = `Usage: rnetstat [flags] [pid ...]

Rnetstat shows the sessions and streams of running processes of this user, on a
terminal as top shows processes: the busiest first. Elsewhere, and with -once, it
prints a page of listeners, sessions and streams.

Keys:
  q       quit
  s       sessions or streams
  < >     choose the column by which the lines are sorted
  r       reverse the order
  /       show only lines that have a text; Escape shows all again
  space   pause, and go on

Columns of sessions; all numbers but those a second are since it opened:
  OVER    the device: soft0 is shared memory
  -> <-   the process has dialed the session, or accepted it
  PEER    on a page: the process at the other end, by its own account
  AGE     how long the session has been open
  STREAMS connections on it
  IN/s    bytes received a second
  OUT/s   bytes sent a second
  MSG/s   messages a second, both ways, on a page MSG-IN/s and MSG-OUT/s; a Write
          is one for each 16 KiB (64 KiB on an RDMA device)
  HIT     the share of waits that polling ended, without a sleep
  WAKE    on a page: how often a wait slept
  STALL   how often a Write waited because the peer's ring was full
  SPILL   pieces that were moved out of the ring for a reader that is slow
  RING    the size of the receive ring; on a page also what readers have not taken of it

Columns of streams, numbered by session and stream:
  IN OUT  bytes received and sent since it was opened; with /s, a second
  UNREAD  bytes that have arrived and were not read
  WINDOW  bytes that may be sent before the peer reads

Columns of listeners, on a page:
  LISTEN  the address, or the Unix socket
  SESSIONS and STREAMS
          sessions that are open; streams that peers have opened since it listens
  WAITING streams that wait for Accept
  TCP     connections that came over TCP, or plain ones at a Unix socket
  DENIED  peers that may not open a session
  FAILED  sessions that did not come about for other reasons

Flags:
`

func rnetstat(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("rnetstat", flag.ContinueOnError)
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), usage)
		flags.PrintDefaults()
	}
	asJSON := flags.Bool("json", false, "print JSON, a line for each look, for programs")
	once := flags.Bool("once", false, "look once")
	every := flags.Duration("every", time.Second, "how often to look")
	rounds := flags.Int("n", 0, "stop after so many `looks`; 0: never")
	streams := flags.Int("streams", 20, "on a page: show so many streams of each process, those with the most traffic first")
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

	endpoint string // no other process has it
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
		l.Processes = append(l.Processes, process{PID: p.PID, Snapshot: &p.Snapshot, endpoint: p.Endpoint})
	}
	if len(pids) > 0 && len(l.Processes) == 0 {
		return nil, fmt.Errorf("process %v tells nothing: it has neither session nor listener of rnet, is another user's, or has RNET_STATS=off", pids)
	}
	return l, nil
}
