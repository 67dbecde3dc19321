package harness

import (
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// tests is what the options choose.
func (o options) tests() []test {
	if o.Page != programsPage {
		return floorsBehind(suite(o))
	}
	var chosen []test
	for _, t := range programTests(o) {
		switch {
		case o.Run != nil && !o.Run.MatchString(t.Name):
		case o.Run == nil && !o.All && !t.Usual:
		default:
			chosen = append(chosen, t)
		}
	}
	return floorsBehind(chosen)
}

// floorsBehind puts each floor right behind the test that is compared with it, if that is there. Two
// virtual CPUs can be two cores in one minute and threads of one core in the next, of which the
// floor is a fifth.
func floorsBehind(tests []test) []test {
	var ordered []test
	for _, t := range tests {
		at := slices.IndexFunc(ordered, func(other test) bool { return t.Floor != nil && other.Name == t.Floor.Of })
		if at < 0 {
			at = len(ordered) - 1
		}
		ordered = slices.Insert(ordered, at+1, t)
	}
	return ordered
}

// programMetrics are the columns of the page.
var programMetrics = []metric{rate, p50, p99, p999, cpuPerOp}

// programTests are all tests of the page of programs.
func programTests(o options) []test {
	var s programSuite
	s.o = o
	for _, p := range programs {
		s.closedAndPaced(s.program(p.Name, p.Title, 1), s.program(p.Name, p.Title, 64))
	}
	if programsAlone {
		return s.tests
	}
	hop, hops := s.echo("proxy", "proxy hop", 1), s.echo("proxy", "proxy hop", 64)
	hop.Workload.Hop, hops.Workload.Hop = true, true
	s.closedAndPaced(hop, hops)

	// An echo in one goroutine on each side: the transport by itself.
	echo, echoes := s.echo("echo", "echo", 1), s.echo("echo", "echo", 64)
	s.add(true, echo)
	s.add(true, echo.on("two"))
	s.add(true, echo.on("one"))
	for _, perSecond := range []float64{1000, 5000, 20_000} {
		s.add(true, echo.paced(perSecond))
	}
	s.add(true, echoes.paced(20_000))
	s.add(false, echo.paced(5000).on("one"))

	for _, n := range []int{20, 100} {
		s.add(true, echo.clients(n))
		s.add(false, s.program(http1.Name, http1.Title, 1).clients(n))
		s.add(false, s.program(netRPC.Name, netRPC.Title, 1).clients(n))
	}
	s.add(true, echo.clients(20).paced(10_000))
	s.add(false, echo.clients(100).paced(10_000))
	s.add(false, echo.clients(1000).paced(10_000))

	// Work beside it that has nothing to do with connections.
	reader := s.program(readerLoop.Name, readerLoop.Title, 1)
	gnet := s.o.byHandlers(s.echo("gnet", "gnet echo", 1).test)
	s.add(true, s.program(http1.Name, http1.Title, 1).neighbours())
	s.add(true, programTest{gnet}.on("one"))
	for _, n := range []int{20, 100} {
		s.add(false, programTest{gnet}.clients(n))
	}
	s.add(true, programTest{gnet}.neighbours())
	s.add(true, reader.neighbours())
	s.add(false, reader.busy())
	s.add(true, s.program(http1.Name, http1.Title, 1).busy())
	s.add(false, s.program(http2.Name, http2.Title, 1).busy())
	s.add(false, s.program(netRPC.Name, netRPC.Title, 1).busy())
	s.add(false, echo.busy())

	for _, size := range []int{64, 32 << 10} {
		for _, think := range []time.Duration{10, 30, 60, 100, 300} {
			t := echo.thinking(size, think*time.Microsecond)
			s.add(false, t)
			s.add(true, t.local())
		}
	}
	for _, n := range []int{20, 100} {
		t := s.echo("memory", "memory", 1).clients(n)
		t.Title = fmt.Sprintf("a session each of %d client processes", n)
		t.Workload.Kind, t.Once = sessions, true
		t.Metrics = []metric{serverWhole, resident, descriptors}
		s.add(n == 100, t)
	}
	return append(s.tests, s.floors()...)
}

type programSuite struct {
	o     options
	tests []test
}

// programTest is a test under construction. Its methods return variants of
// it, and leave it alone.
type programTest struct{ test }

func (s *programSuite) add(usual bool, t programTest) {
	t.Usual = usual
	s.tests = append(s.tests, t.test)
}

// floors are the limits of this machine, after what is compared with the second
// of them.
func (s *programSuite) floors() []test {
	writes := test{
		Name:     "writes/two",
		Title:    fmt.Sprintf("%s writes, a CPU each", formatSize(s.o.Bulk)),
		Workload: s.o.workload(oneWay, s.o.Bulk, 1),
		Metrics:  []metric{throughput, cpuPerGiB},
		Pin:      "two",
	}
	floors := floorTests(s.o)
	floors[0].Floor.Of, floors[1].Floor.Of = "echo/1/two", writes.Name
	tests := append([]test{writes}, floors...)
	for i := range tests {
		tests[i].Usual = true
	}
	return tests
}

// closedAndPaced adds what is measured of each program, with one call at a
// time and with many.
func (s *programSuite) closedAndPaced(one, many programTest) {
	for _, pin := range []string{"none", "two", "one"} {
		s.add(true, one.on(pin))
		s.add(true, many.on(pin))
	}
	for _, t := range []programTest{one, many} {
		for _, perSecond := range []float64{1000, 20_000} {
			s.add((t.Workload.Conns == 1) == (perSecond == 1000), t.paced(perSecond))
			s.add(false, t.paced(perSecond).on("two"))
			s.add(false, t.paced(perSecond).on("one"))
		}
	}
}

func (s *programSuite) program(name, title string, calls int) programTest {
	t := s.echo(name, title, calls)
	t.Workload.Program = name
	return t
}

func (s *programSuite) echo(name, title string, calls int) programTest {
	at := "1 call"
	if calls > 1 {
		at = fmt.Sprintf("%d calls", calls)
	}
	return programTest{test{
		Name:     fmt.Sprintf("%s/%d", name, calls),
		Title:    fmt.Sprintf("%s, %s", title, at),
		Workload: s.o.workload(roundTrips, s.o.Message, calls),
		Metrics:  programMetrics,
	}}
}

// called adds to the test's name and title.
func (t programTest) called(name, title string) programTest {
	t.Name += "/" + name
	t.Title += ", " + title
	return t
}

func (t programTest) on(pin string) programTest {
	t.Pin = pin
	switch pin {
	case "two":
		return t.called("two", "a CPU each")
	case "one":
		return t.called("one", "one CPU")
	}
	return t
}

func (t programTest) paced(perSecond float64) programTest {
	t.Workload.Rate = perSecond
	text := strconv.FormatFloat(perSecond, 'f', -1, 64)
	return t.called(text, "paced "+text+"/s")
}

// clients is the test with that many client processes.
func (t programTest) clients(n int) programTest {
	t.Workload.Clients = n
	t.Workload.Duration *= 3 // there are few calls of each
	t.Title = strings.TrimSuffix(t.Title, ", 1 call")
	t.Metrics = append(slices.Clone(t.Metrics), worstP99)
	return t.called(fmt.Sprintf("%dclients", n), fmt.Sprintf("%d client processes", n))
}

func (t programTest) busy() programTest {
	t.Workload.Busy = true
	t.Metrics = []metric{rate, p50, p99, p999} // the CPU time is that of the computing
	return t.called("busy", "both compute")
}

func (t programTest) neighbours() programTest {
	t.Workload.Neighbours = runtime.NumCPU()
	return t.called("beside", "others compute")
}

func (t programTest) thinking(size int, think time.Duration) programTest {
	t.Workload.Size, t.Workload.Think = size, think
	text := fmt.Sprintf("%dus", think.Microseconds())
	short := strings.ReplaceAll(strings.ReplaceAll(formatSize(size), " ", ""), "iB", "")
	return t.called(short+"/"+text, fmt.Sprintf("%s, computing %d us", formatSize(size), think.Microseconds()))
}

func (t programTest) local() programTest {
	t.Workload.Local = true
	return t.called("local", "one process")
}
