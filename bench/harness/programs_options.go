package harness

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"
)

// programsPage is the first argument that asks for the second page.
const programsPage = "programs"

const programsUsage = `Bench programs compares TCP, Unix sockets and ramjet in programs as people have
them: two processes and more, calls one at a time and many, as fast as they go
and at a pace, with processors of their own and shared. Without flags it takes
about two minutes.

  go run ./bench programs                              the usual selection
  go run ./bench programs -list -all                   what there is
  go run ./bench programs -run 'http./1$'              tests whose names match
  go run ./bench programs -run two -rounds 5 -duration 500ms
  go run ./bench programs -run 1000clients             needs some 10 GB of memory
  go run ./bench programs -containers -transport ramjet -run '^(http1|rpc|echo)/'

Beside TCP's figure stands how many times better each other transport is; what
is worse than TCP is marked <. A legend below the table explains the columns.

Flags:
`

// parseProgramOptions reads the command line of the page of programs, as
// parseOptions does that of the first one.
func parseProgramOptions(args []string, stderr io.Writer) (options, error) {
	o := options{
		Page:       programsPage,
		Transports: defaultTransports(),
		Sizes:      []int{64},
		Message:    64,
		Bulk:       1 << 20,
		Loops:      1,
		Idle:       1,
		Pin:        "none",
	}
	f := flag.NewFlagSet("bench programs", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.Usage = func() {
		fmt.Fprint(stderr, programsUsage)
		f.PrintDefaults()
	}
	f.Func("run", "only tests whose names match this `regexp`, of all that there are", func(text string) (err error) {
		o.Run, err = regexp.Compile(text)
		return err
	})
	f.BoolVar(&o.All, "all", false, "all tests instead of the usual selection")
	f.BoolVar(&o.list, "list", false, "print the names of the chosen tests, and run none")
	f.Func("transport", "`names` of the transports: "+strings.Join(transportNames(), ", ")+" (default all that work here)", func(text string) error {
		return parseNames(text, transportNames(), &o.Transports)
	})
	f.DurationVar(&o.Duration, "duration", 150*time.Millisecond, "length of a round of one transport; three times that with many client processes")
	f.DurationVar(&o.Warmup, "warmup", 30*time.Millisecond, "the same work before each round, not measured")
	f.IntVar(&o.Rounds, "rounds", 3, "rounds of each transport; the table shows the median")
	f.StringVar(&o.Profile, "profile", os.Getenv("RNET_PROFILE"), "how ramjet waits: latency, balanced or efficient; empty leaves it to the library")
	f.BoolVar(&o.Containers, "containers", false, "both processes in a container (namespaces of their own), and in a second column in two that share a directory; linux only, needs the rights of root, also of a user namespace (unshare --map-root-user)")
	f.StringVar(&o.jsonFile, "json", "", "write everything that was measured to this `file`")
	f.StringVar(&o.profileDir, "cpuprofile", "", "write a CPU profile of the server and of the first client to this `directory`")
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
	if o.Containers {
		o.Transports = withApart(o.Transports)
	}
	if len(o.tests()) == 0 {
		return o, complain(f, errors.New("no test is chosen"))
	}
	return o, nil
}
