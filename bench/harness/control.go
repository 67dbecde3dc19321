package harness

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"
)

// role is which of the two measured processes a re-executed program is.
type role string

const (
	serving   role = "server"
	dialing   role = "client"
	computes  role = "neighbour" // of both: only takes processor time
	answering role = "backend"   // of a server that passes everything on
)

// childEnv carries the assignment of a re-executed process, as JSON. A
// process that has it set measures; one that has not is the command itself.
const childEnv = "RAMJET_BENCH_CHILD"

// assignment is what a measured process is for.
type assignment struct {
	Role       role     `json:"role"`
	Transport  string   `json:"transport"`
	Site       site     `json:"site"`
	Addr       string   `json:"addr,omitempty"`    // where a client finds its server
	Backend    string   `json:"backend,omitempty"` // where a server finds whom it passes everything on to
	CPUProfile string   `json:"cpu_profile,omitempty"`
	Workload   workload `json:"workload"`
}

// command is an order from the command's process to a measured one, one JSON
// value on its standard input.
type command string

const (
	prepare     command = "prepare"  // client: connect, warm up; others: compute, if they are to
	run         command = "run"      // client: do the measured work
	finish      command = "finish"   // client: close the connections, tell what was measured; others: compute no more
	snapshot    command = "snapshot" // both: tell CPU time and failures so far
	memoryInUse command = "memory"   // both: collect garbage, then tell the memory in use
)

// reply answers a command, one JSON value on the process's standard output.
// A serving process begins with one that holds its address.
type reply struct {
	Err  string `json:"err,omitempty"` // the command failed as a whole
	Addr string `json:"addr,omitempty"`

	// user and system; since the start for a snapshot, of the run after finish
	CPU      time.Duration `json:"cpu,omitempty"`
	Failures int           `json:"failures,omitempty"`
	Failure  string        `json:"failure,omitempty"` // the first of them

	Heap     uint64 `json:"heap,omitempty"`     // bytes of live Go objects
	Stack    uint64 `json:"stack,omitempty"`    // bytes of goroutine stacks
	Resident uint64 `json:"resident,omitempty"` // proportional set size in bytes, 0 if unknown
	// resident set size in bytes, memory that is shared and all; 0 if unknown
	Whole uint64 `json:"whole,omitempty"`
	Files int    `json:"files,omitempty"` // open descriptors, 0 if unknown

	Used     string        `json:"used,omitempty"`      // what the connections really are
	Opened   int64         `json:"opened,omitempty"`    // connections so far
	FellBack int64         `json:"fell_back,omitempty"` // of those, TCP although something else was asked for
	Ops      int64         `json:"ops,omitempty"`
	Elapsed  time.Duration `json:"elapsed,omitempty"`
	Late     time.Duration `json:"late,omitempty"`    // median of how late an open loop's messages were written
	Latency  []byte        `json:"latency,omitempty"` // HdrHistogram of nanoseconds, V2 compressed
}

// worker is the serving or the dialing end of a test, in its process.
type worker interface {
	obey(command) reply
	close()
}

// runIfChild runs the measured side and does not return, if the environment says
// that this process is one.
func runIfChild() {
	text := os.Getenv(childEnv)
	if text == "" {
		return
	}
	if err := serveChild(text, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// serveChild does what the assignment in text says until in ends, which it
// does when the command closes it or dies.
func serveChild(text string, in io.Reader, out io.Writer) error {
	var a assignment
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		return fmt.Errorf("read assignment: %w", err)
	}
	var t transport // a floor has none
	var err error
	if !a.Workload.floor() {
		t, err = transportByName(a.Transport)
	}
	if err != nil {
		return err
	}
	stop, err := startCPUProfile(a.CPUProfile)
	if err != nil {
		return err
	}
	defer stop()

	var w worker
	commands, replies := json.NewDecoder(in), json.NewEncoder(out)
	switch a.Role {
	case serving, answering:
		var addr string
		if w, addr, err = serve(t, a); err != nil {
			return replies.Encode(reply{Err: err.Error()})
		}
		defer w.close()
		if err := replies.Encode(reply{Addr: addr}); err != nil {
			return fmt.Errorf("tell address: %w", err)
		}
	case dialing:
		if w, err = call(t, a); err != nil {
			return replies.Encode(reply{Err: err.Error()})
		}
		defer w.close()
	case computes:
		w = newNeighbour()
		defer w.close()
	default:
		return fmt.Errorf("unknown role %q", a.Role)
	}
	for {
		var cmd command
		if err := commands.Decode(&cmd); err != nil {
			return nil // end of input: the command is done with this process
		}
		if err := replies.Encode(w.obey(cmd)); err != nil {
			return fmt.Errorf("answer %s: %w", cmd, err)
		}
	}
}

// serve starts the serving end and tells its address.
func serve(t transport, a assignment) (worker, string, error) {
	switch w := a.Workload; {
	case w.floor():
		s, err := startFloor(w)
		if err != nil {
			return nil, "", err
		}
		return s, s.addr(), nil
	case w.Loops > 0:
		s, err := startEventServer(t.engine, a.Site, w)
		if err != nil {
			return nil, "", err
		}
		return s, s.address, nil
	}
	s, err := startServer(t, a.Site, a.Backend, a.Workload)
	if err != nil {
		return nil, "", err
	}
	return s, s.addr(), nil
}

// call makes the dialing end, and for a local workload the serving one too.
func call(t transport, a assignment) (worker, error) {
	switch w := a.Workload; {
	case w.floor():
		return joinFloor(w, a.Addr)
	case w.Local:
		s, err := startServer(t, a.Site, "", w)
		if err != nil {
			return nil, fmt.Errorf("listen: %w", err)
		}
		return &bothEnds{client: newClient(t, s.addr(), w), server: s}, nil
	}
	return newClient(t, a.Addr, a.Workload), nil
}

// bothEnds is a client with its server in the same process.
type bothEnds struct {
	*client
	server  *server
	counted int // failures of the server that earlier rounds have reported
}

func (b *bothEnds) obey(cmd command) reply {
	r := b.client.obey(cmd)
	if cmd == finish {
		s := b.server.obey(snapshot)
		if r.Failures == 0 && s.Failures > b.counted {
			r.Failure = s.Failure
		}
		r.Failures += s.Failures - b.counted
		b.counted = s.Failures
	}
	return r
}

func (b *bothEnds) close() {
	b.client.close()
	b.server.close()
}
