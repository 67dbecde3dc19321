package harness

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// options is what the command line says. Its fields are in the JSON report.
type options struct {
	Tests      names         `json:"tests"`
	Transports names         `json:"transports"`
	Sizes      []int         `json:"sizes"`   // bytes of the round trips
	Message    int           `json:"message"` // bytes of all other small messages
	Bulk       int           `json:"bulk"`    // bytes of a throughput write
	Conns      []int         `json:"conns"`   // connections of the request tests
	Streams    []int         `json:"streams"` // connections of the one-way and throughput tests
	Dialers    []int         `json:"dialers"` // dials in flight of the opening tests
	Idle       int           `json:"idle"`
	EventConns []int         `json:"event_conns"` // connections of the gnet tests
	EventSizes []int         `json:"event_sizes"` // message bytes of the gnet tests
	Loops      int           `json:"loops"`       // event loops of each side in the gnet tests
	Duration   time.Duration `json:"duration"`    // of a round
	Warmup     time.Duration `json:"warmup"`
	Rounds     int           `json:"rounds"`
	Profile    string        `json:"profile"` // RNET_PROFILE, "" for rnet's own choice
	Rate       float64       `json:"rate"`    // open loop, messages/s; 0 for a closed loop
	Pin        string        `json:"pin"`     // none, one or two

	Page string         `json:"page,omitempty"` // "programs" for that page
	All  bool           `json:"all,omitempty"`  // of that page
	Run  *regexp.Regexp `json:"run,omitempty"`  // of that page: the names of the tests to run

	Containers bool `json:"containers,omitempty"` // of that page

	jsonFile, svgFile, profileDir string
	list                          bool
	verbose                       bool
}

// names is a choice of names, in the order of the program's own list.
type names []string

func (n names) has(name string) bool { return slices.Contains(n, name) }

const usage = `Bench compares ways to connect two processes of one host: TCP over loopback,
a Unix socket, and ramjet. It starts two processes for each, measures them in
turn, and prints one table. Without flags it takes less than a minute.

  go run ./bench                                  everything but gnetidle
  go run ./bench -test rtt,requests               only these tests
  go run ./bench -test rtt -duration 2s -pin two  longer rounds, a CPU for each process
  go run ./bench -test requests -rate 50000       open loop: 50,000 requests a second
  go run ./bench -test gnet -gnetconns 1,100,1000,10000 -gnetsize 64,1KiB -loops 2
  go run ./bench -json out.json -svg out.svg      keep the figures, draw them
  go run ./bench programs                         another page: programs as people have them; see programs -help

The column "vs TCP" says how many times better a figure is than TCP's in the
same run: 2x is half the time, or twice the rate. A legend below the table
explains the other columns.

Tests:
`

// parseOptions reads the command line. Usage and errors go to stderr; the
// error is flag.ErrHelp after -help.
func parseOptions(args []string, stderr io.Writer) (options, error) {
	o := options{
		Transports: defaultTransports(),
		Sizes:      []int{64, 4096},
		Message:    64,
		Bulk:       1 << 20,
		Conns:      []int{1, 64, 1000},
		Streams:    []int{1},
		Dialers:    []int{1, 16},
		EventConns: []int{1, 1000},
		EventSizes: []int{64},
	}
	var allTests names
	for _, g := range groups {
		allTests = append(allTests, g.name)
		if !g.onlyAsked {
			o.Tests = append(o.Tests, g.name)
		}
	}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.Usage = func() {
		fmt.Fprint(stderr, usage)
		for _, g := range groups {
			fmt.Fprintf(stderr, "  %-12s %s\n", g.name, g.about)
		}
		fmt.Fprint(stderr, "\nFlags:\n")
		f.PrintDefaults()
	}
	f.Func("test", "`names` of the tests to run, with commas between (default all but gnetidle)", func(text string) error {
		return parseNames(text, allTests, &o.Tests)
	})
	f.Func("transport", "`names` of the transports: "+strings.Join(transportNames(), ", ")+" (default all that work here)", func(text string) error {
		return parseNames(text, transportNames(), &o.Transports)
	})
	f.Func("size", "message `sizes` of the round trips (default 64,4KiB)", func(text string) error {
		return parseList(text, parseMessageSize, &o.Sizes)
	})
	f.Func("message", "message `size` of the other tests but throughput and gnet (default 64)", func(text string) (err error) {
		o.Message, err = parseMessageSize(text)
		return err
	})
	f.Func("bulk", "`size` of the writes of the throughput test (default 1MiB)", func(text string) (err error) {
		o.Bulk, err = parseMessageSize(text)
		return err
	})
	f.Func("conns", "connection `counts` of the request tests (default 1,64,1000)", func(text string) error {
		return parseList(text, parseCount, &o.Conns)
	})
	f.Func("streams", "connection `counts` of the oneway and throughput tests (default 1)", func(text string) error {
		return parseList(text, parseCount, &o.Streams)
	})
	f.Func("dialers", "dials in flight of the open tests, `counts` (default 1,16)", func(text string) error {
		return parseList(text, parseCount, &o.Dialers)
	})
	f.IntVar(&o.Idle, "idle", 1000, "connections of the idle tests")
	f.Func("gnetconns", "connection `counts` of the gnet tests (default 1,1000)", func(text string) error {
		return parseList(text, parseCount, &o.EventConns)
	})
	f.Func("gnetsize", "message `sizes` of the gnet tests (default 64)", func(text string) error {
		return parseList(text, parseMessageSize, &o.EventSizes)
	})
	f.IntVar(&o.Loops, "loops", 1, "event loops of each side in the gnet tests")
	f.DurationVar(&o.Duration, "duration", 200*time.Millisecond, "length of a round of one transport")
	f.DurationVar(&o.Warmup, "warmup", 50*time.Millisecond, "the same work before each round, not measured")
	f.IntVar(&o.Rounds, "rounds", 5, "rounds of each transport; the table shows the median")
	f.StringVar(&o.Profile, "profile", os.Getenv("RNET_PROFILE"), "how ramjet waits: latency (polls), balanced (polls while that pays), efficient (parks); empty leaves it to the library, which takes balanced")
	f.Float64Var(&o.Rate, "rate", 0, "messages per second over all connections of round trip and request tests (open loop); 0 for as fast as they go (closed loop)")
	f.StringVar(&o.Pin, "pin", "none", "none, one (both processes on one CPU) or two (a CPU for each); linux only")
	f.StringVar(&o.jsonFile, "json", "", "write everything that was measured to this `file`")
	f.StringVar(&o.svgFile, "svg", "", "draw the table to this `file`")
	f.StringVar(&o.profileDir, "cpuprofile", "", "write a CPU profile of each measured process to this `directory`, for go tool pprof")
	f.BoolVar(&o.verbose, "v", false, "print the goroutines of a process that hangs")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, complain(f, fmt.Errorf("unexpected argument %q", f.Arg(0)))
	}
	if err := o.validate(); err != nil {
		return o, complain(f, err)
	}
	return o, nil
}

func complain(f *flag.FlagSet, err error) error {
	fmt.Fprintf(f.Output(), "bench: %v\nRun with -help for usage.\n", err)
	return err
}

func (o options) validate() error {
	switch {
	case o.Duration <= 0 || o.Duration > time.Hour:
		return errors.New("-duration must be above 0 and at most an hour")
	case o.Warmup < 0 || o.Warmup > time.Hour:
		return errors.New("-warmup must be between 0 and an hour")
	case o.Rounds < 1:
		return errors.New("-rounds must be at least 1")
	case o.Loops < 1 || o.Loops > ownRecorders:
		return fmt.Errorf("-loops must be between 1 and %d", ownRecorders)
	case o.Idle < 1 || o.Idle > connMask:
		return fmt.Errorf("-idle must be between 1 and %d", connMask)
	case !(o.Rate >= 0 && o.Rate <= 1e9):
		return errors.New("-rate must be between 0 and 1e9")
	}
	switch o.Profile {
	case "", "latency", "balanced", "efficient":
	default:
		return fmt.Errorf("-profile %q is not latency, balanced or efficient", o.Profile)
	}
	_, _, err := cpus(o.Pin)
	return err
}

// cpus says where a value of -pin puts the two processes, -1 for anywhere.
func cpus(pin string) (server, client int, err error) {
	if pin == "none" {
		return -1, -1, nil
	}
	if pin != "one" && pin != "two" {
		return 0, 0, fmt.Errorf("-pin %q is not none, one or two", pin)
	}
	allowed, err := allowedCPUs()
	if err != nil {
		return 0, 0, err
	}
	if pin == "one" {
		return allowed[0], allowed[0], nil
	}
	if len(allowed) < 2 {
		return 0, 0, errors.New("-pin two needs two CPUs")
	}
	return allowed[0], allowed[1], nil
}

// loop says whether the load waits for answers.
func (o options) loop() string {
	if o.Rate == 0 {
		return "closed loop"
	}
	return fmt.Sprintf("open loop at %s for round trips and requests", formatRate(o.Rate))
}

func defaultTransports() names {
	chosen := names(transportNames())
	if runtime.GOOS != "linux" && !unixWorks() {
		chosen = slices.DeleteFunc(chosen, func(name string) bool { return name == "unix" })
	}
	return chosen
}

func parseNames(text string, known names, into *names) error {
	asked := names(strings.Split(text, ","))
	for _, name := range asked {
		if !known.has(name) {
			return fmt.Errorf("%q is none of %s", name, strings.Join(known, ", "))
		}
	}
	*into = nil
	for _, name := range known {
		if asked.has(name) {
			*into = append(*into, name)
		}
	}
	return nil
}

func parseList(text string, parse func(string) (int, error), into *[]int) error {
	*into = nil
	for item := range strings.SplitSeq(text, ",") {
		n, err := parse(item)
		if err != nil {
			return err
		}
		*into = append(*into, n)
	}
	return nil
}

func parseCount(text string) (int, error) {
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil || n < 1 || n > connMask {
		return 0, fmt.Errorf("%q is not a number from 1 to %d", text, connMask)
	}
	return n, nil
}

const largestMessage = 1 << 30

// parseMessageSize reads bytes: 64, 4KiB, 1MiB.
func parseMessageSize(text string) (int, error) {
	digits := strings.TrimSpace(text)
	shift := 0
	for suffix, s := range map[string]int{"KiB": 10, "MiB": 20} {
		if rest, ok := strings.CutSuffix(digits, suffix); ok {
			digits, shift = strings.TrimSpace(rest), s
		}
	}
	n, err := strconv.Atoi(digits)
	if err != nil {
		return 0, fmt.Errorf("%q is not a size like 64, 4KiB or 1MiB", text)
	}
	if n < 1 || n > largestMessage>>shift || n<<shift < minMessage {
		return 0, fmt.Errorf("%q is not between %d B and %s", text, minMessage, formatSize(largestMessage))
	}
	return n << shift, nil
}
