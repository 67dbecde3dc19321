// Package verbsperf is `bench verbs`: latency and bandwidth of the verbs between two
// processes, in the manner of perftest, whose names the tests and the columns have
// (https://github.com/linux-rdma/perftest).
package verbsperf

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// tests are all tests, in the order in which they run.
var tests = []string{
	"send_lat", "write_lat", "write_imm_lat", "read_lat", "atomic_lat",
	"send_bw", "write_bw", "write_imm_bw", "read_bw", "atomic_bw",
}

// options are what the command line says.
type options struct {
	Device          string
	Listen, Dial    string
	Tied            bool
	Tests           []string
	Sizes, QPs      []int
	Depths, Inlines []int
	Iterations      int
	Mod             int
	GID             int // -1: chosen
	CM              bool
	Events, Both    bool
	JSON            bool
	SVG             string
}

// The most that a server lets a client ask for, whatever the device.
const (
	maxSize       = 1 << 30
	maxIterations = 1 << 24
	maxQPs        = 1024
)

const usage = `Bench verbs measures latency and bandwidth of the verbs between two processes, with the
tests and columns of perftest.

  go run ./bench verbs -test send_lat,write_bw -sizes 64,65536     starts both processes
  go run ./bench verbs -device rxe0 -listen :18515                 on two hosts: the server,
  go run ./bench verbs -device rxe0 -dial 10.0.0.1:18515           and the client, which prints

Latency (_lat): one message after the other. The times are half of a round trip, of READ
and atomics a whole one. t_typical is the median.
Bandwidth (_bw): up to -depth requests of each queue pair are outstanding. BW average is of
the whole test, BW peak of its fastest part; a MB has 2^20 bytes. MsgRate is millions of
messages a second. With -bidirectional both ends are added.
Two messages of each queue pair go ahead of what is measured.

Flags:
`

func parseOptions(args []string, stderr io.Writer) (options, error) {
	o := options{Tests: tests, Sizes: []int{2, 64, 1024, 4096, 65536, 1 << 20}, QPs: []int{1}, Depths: []int{128}, Inlines: []int{0}}
	f := flag.NewFlagSet("bench verbs", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.Usage = func() {
		fmt.Fprint(stderr, usage)
		f.PrintDefaults()
	}
	f.StringVar(&o.Device, "device", "soft0", "RDMA `device`")
	f.StringVar(&o.Listen, "listen", "", "be the server, on this TCP `address`; the client says what is measured")
	f.BoolVar(&o.Tied, "tied", false, "as the server, end when standard input does")
	f.StringVar(&o.Dial, "dial", "", "be the client of the server at this TCP `address` (default: start one)")
	f.Func("test", "`names` of tests, with commas: "+strings.Join(tests, ", ")+" (default all)", func(text string) error {
		o.Tests = strings.Split(text, ",")
		for _, name := range o.Tests {
			if !slices.Contains(tests, name) {
				return fmt.Errorf("no test %q", name)
			}
		}
		return nil
	})
	list := func(to *[]int, name, usage string, least, most int) {
		f.Func(name, fmt.Sprintf("%s, with commas (default %s)", usage, words(*to)), func(text string) error {
			*to = nil
			for word := range strings.SplitSeq(text, ",") {
				n, err := strconv.Atoi(word)
				if err != nil || n < least || n > most {
					return fmt.Errorf("%q is not a number from %d to %d", word, least, most)
				}
				*to = append(*to, n)
			}
			return nil
		})
	}
	list(&o.Sizes, "sizes", "`bytes` of a message", 1, maxSize)
	list(&o.QPs, "qps", "`numbers` of queue pairs, for bandwidth", 1, maxQPs)
	list(&o.Depths, "depth", "`requests` outstanding on a QP, for bandwidth", 1, math.MaxInt32)
	list(&o.Inlines, "inline", "messages of up to so many `bytes` are sent inline", 0, maxSize)
	f.IntVar(&o.Iterations, "n", 1000, "`iterations`, for each QP")
	f.IntVar(&o.Mod, "cq-mod", 100, "of so many `requests` of a QP one is signaled, no fewer than one in each depth; for bandwidth")
	f.IntVar(&o.GID, "gid", -1, "`row` of this end's table of GIDs; -1: on InfiniBand the LID, elsewhere a row with an IPv4 address")
	f.BoolVar(&o.CM, "rcm", false, "connect the queue pairs by a connection manager (package rcm); on iWARP there is no other way")
	f.BoolVar(&o.Events, "events", false, "sleep until there is a completion, instead of polling; write_lat looks at memory, and polls")
	f.BoolVar(&o.Both, "bidirectional", false, "both ends send, for bandwidth")
	f.BoolVar(&o.JSON, "json", false, "print JSON")
	f.StringVar(&o.SVG, "svg", "", "draw the figures into this `file`")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	switch {
	case f.NArg() > 0:
		return o, fmt.Errorf("unknown argument %q", f.Arg(0))
	case o.Listen != "" && o.Dial != "":
		return o, errors.New("-listen and -dial exclude each other")
	case o.Iterations < 1 || o.Iterations > maxIterations:
		return o, fmt.Errorf("-n %d is not from 1 to %d", o.Iterations, maxIterations)
	case o.Mod < 1:
		return o, fmt.Errorf("-cq-mod %d is less than 1", o.Mod)
	case o.GID < -1 || o.GID > 255:
		return o, fmt.Errorf("-gid %d is not a row", o.GID)
	}
	return o, nil
}

// words are the numbers with commas between them.
func words(list []int) string {
	return strings.Trim(strings.Join(strings.Fields(fmt.Sprint(list)), ","), "[]")
}

// spec is one measurement, as the client tells it to the server.
type spec struct {
	Test                                      string
	Size, Iterations, QPs, Depth, Mod, Inline int
	CM, Events, Both                          bool
}

// check is what a server demands of a client that it does not know. fits does the rest.
func (s *spec) check() error {
	if !slices.Contains(tests, s.Test) || s.Size < 1 || s.Size > maxSize || s.Iterations < 1 || s.Iterations > maxIterations ||
		s.QPs < 1 || s.QPs > maxQPs || s.Depth < 1 || s.Depth > math.MaxInt32 || s.Mod < 1 || s.Mod > s.Depth ||
		s.Inline < 0 || s.Test == polled && s.Size%4 != 0 {
		return fmt.Errorf("the client wants what cannot be: %+v", *s)
	}
	return nil
}

// fits says which limit of the device the measurement is beyond.
func (s *spec) fits(attr verbs.DeviceAttr, port verbs.PortAttr) error {
	for _, l := range []struct {
		option     string
		need, most uint64
		of         string
	}{
		{"-depth", uint64(s.Depth), uint64(attr.MaxQPWR), "requests in a queue"},
		{"-n of send_bw", uint64(s.receives(attr)), uint64(attr.MaxQPWR), "receives in a queue"},
		{"-qps", uint64(s.QPs), uint64(attr.MaxQP), "QPs"},
		{"-depth times -qps,", uint64(s.Depth) * uint64(s.QPs), uint64(attr.MaxCQE), "entries of a CQ"},
		{"-n of send_bw times -qps,", uint64(s.receives(attr)) * uint64(s.QPs), uint64(attr.MaxCQE), "entries of a CQ"},
		{"-sizes", uint64(s.Size), uint64(port.MaxMsgSize), "bytes of a message"},
	} {
		if l.most > 0 && l.need > l.most { // 0: unknown
			return fmt.Errorf("%s %d: %s has no more than %d %s", l.option, l.need, attr.Name, l.most, l.of)
		}
	}
	if s.Inline > attr.MaxInline {
		return fmt.Errorf("-inline %d: %s has no more than %d bytes inline", s.Inline, attr.Name, attr.MaxInline)
	}
	return nil
}

// receives are those posted on each QP: for a stream as many as perftest has, where the device lets
// us, so that messages seldom find none. iWARP ends a connection if one does, and does not try
// again: there each has one.
func (s *spec) receives(attr verbs.DeviceAttr) int {
	switch {
	case s.latency() || !s.uses():
		return s.Depth
	case attr.Transport == verbs.TransportIWARP:
		return max(s.Depth, s.Iterations, warmUps)
	}
	return max(s.Depth, min(512, attr.MaxQPWR, attr.MaxCQE/s.QPs))
}

func (s *spec) latency() bool { return strings.HasSuffix(s.Test, "_lat") }

// polled is the test that looks at memory: the last word of a message tells its number.
const polled = "write_lat"

// specs are the measurements in their order, those of one table with nothing but sizes
// between them. Atomics have one size. Of what an operation or a latency knows no difference in,
// one is left.
func (o *options) specs() []spec {
	var list []spec
	for _, test := range o.Tests {
		sizes := o.Sizes
		if strings.HasPrefix(test, "atomic") {
			sizes = []int{8}
		}
		for _, qps := range o.QPs {
			for _, depth := range o.Depths {
				for _, inline := range o.Inlines {
					for _, size := range sizes {
						s := o.spec(test)
						s.QPs, s.Depth, s.Inline, s.Size = qps, depth, inline, size
						if s.settle(); !slices.Contains(list, s) {
							list = append(list, s)
						}
					}
				}
			}
		}
	}
	return list
}

func (o *options) spec(test string) spec {
	return spec{Test: test, Iterations: o.Iterations, Mod: o.Mod, CM: o.CM, Events: o.Events, Both: o.Both}
}

// settle sets what the test does not leave open.
func (s *spec) settle() {
	if s.latency() {
		// A message comes in while the receive of the one before is posted anew.
		s.QPs, s.Depth, s.Mod, s.Both = 1, 2, 1, false
	}
	s.Mod = min(s.Mod, s.Depth)
	if op := s.operation(); op == "read" || op == "atomic" {
		s.Inline = 0
	}
	if s.Test == polled {
		s.Size, s.Events = max(4, s.Size&^3), false
	}
}
