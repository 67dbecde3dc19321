// Package verbsperf is `bench verbs`: latency and bandwidth of the verbs between two
// processes, in the manner of perftest, whose names the tests and the columns have
// (https://github.com/linux-rdma/perftest).
package verbsperf

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// tests are all tests, in the order in which they run.
var tests = []string{
	"send_lat", "write_lat", "write_imm_lat", "read_lat", "atomic_lat",
	"send_bw", "write_bw", "write_imm_bw", "read_bw", "atomic_bw",
}

// options are what the command line says.
type options struct {
	Device       string
	Listen, Dial string
	Tests        []string
	Sizes        []int
	Iterations   int
	QPs          int
	Depth        int
	Inline       int
	Events       bool
	Both         bool
	JSON         bool
}

func parseOptions(args []string, stderr io.Writer) (options, error) {
	o := options{Tests: tests, Sizes: []int{2, 64, 1024, 4096, 65536, 1 << 20}}
	f := flag.NewFlagSet("bench verbs", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&o.Device, "device", "soft0", "RDMA `device`")
	f.StringVar(&o.Listen, "listen", "", "be the server, on this TCP `address`; the client says what is measured")
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
	f.Func("sizes", "`bytes` of a message, with commas (default 2,64,1024,4096,65536,1048576)", func(text string) error {
		o.Sizes = nil
		for _, word := range strings.Split(text, ",") {
			n, err := strconv.Atoi(word)
			if err != nil || n < 1 || n > 1<<30 {
				return fmt.Errorf("size %q", word)
			}
			o.Sizes = append(o.Sizes, n)
		}
		return nil
	})
	f.IntVar(&o.Iterations, "n", 1000, "`iterations`, for each QP")
	f.IntVar(&o.QPs, "qps", 1, "`number` of queue pairs, for bandwidth")
	f.IntVar(&o.Depth, "depth", 128, "`requests` outstanding on a QP, for bandwidth")
	f.IntVar(&o.Inline, "inline", 0, "messages of up to so many `bytes` are sent inline")
	f.BoolVar(&o.Events, "events", false, "sleep until there is a completion, instead of polling")
	f.BoolVar(&o.Both, "bidirectional", false, "both ends send, for bandwidth")
	f.BoolVar(&o.JSON, "json", false, "print JSON")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	switch {
	case f.NArg() > 0:
		return o, fmt.Errorf("unknown argument %q", f.Arg(0))
	case o.Listen != "" && o.Dial != "":
		return o, errors.New("-listen and -dial exclude each other")
	case o.Iterations < 1 || o.QPs < 1 || o.QPs > 1024 || o.Depth < 1 || o.Inline < 0:
		return o, errors.New("a number is out of range")
	}
	return o, nil
}

// spec is one measurement, as the client tells it to the server.
type spec struct {
	Test                                 string
	Size, Iterations, QPs, Depth, Inline int
	Events, Both                         bool
}

// check is what a server demands of a client that it does not know.
func (s *spec) check() error {
	if !slices.Contains(tests, s.Test) || s.Size < 1 || s.Size > 1<<30 || s.Iterations < 1 || s.QPs < 1 || s.QPs > 1024 || s.Depth < 1 ||
		s.Depth > 1<<16 || s.Inline < 0 || s.Test == polled && s.Size%4 != 0 {
		return fmt.Errorf("the client wants what cannot be: %+v", *s)
	}
	return nil
}

func (s *spec) latency() bool { return strings.HasSuffix(s.Test, "_lat") }

// polled is the test that looks at memory: the last word of a message tells its number.
const polled = "write_lat"

// specs are the measurements in their order. Atomics have one size.
func (o *options) specs() []spec {
	var list []spec
	for _, test := range o.Tests {
		sizes := o.Sizes
		if strings.HasPrefix(test, "atomic") {
			sizes = []int{8}
		}
		for _, size := range sizes {
			s := spec{Test: test, Size: size, Iterations: o.Iterations, QPs: o.QPs, Depth: o.Depth, Inline: o.Inline, Events: o.Events, Both: o.Both}
			if s.latency() {
				s.QPs, s.Both = 1, false
			}
			if test == polled {
				s.Size = max(4, size&^3)
			}
			if len(list) == 0 || list[len(list)-1] != s {
				list = append(list, s)
			}
		}
	}
	return list
}
