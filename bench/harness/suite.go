package harness

import "fmt"

// test is a workload under a name, with the figures of it that the table
// shows.
type test struct {
	Name     string   `json:"name"`
	Title    string   `json:"title"`
	Workload workload `json:"workload"`
	Metrics  []metric `json:"metrics"`
	Pin      string   `json:"pin,omitempty"`   // none, one or two; "" for what the options say
	Once     bool     `json:"once,omitempty"`  // one round only: a second one would find what the first has left
	Usual    bool     `json:"usual,omitempty"` // of the page of programs: runs if no others are asked for

	// Floor is set for a workload that no connection can beat. The table shows
	// how far from it each transport was in another test of the run.
	Floor *floor `json:"floor,omitempty"`
}

// floor says what is to be compared to it.
type floor struct {
	Metric metric `json:"metric"`
	Of     string `json:"of"` // name of the other test
}

// groups are what -test chooses from, in the order of the table.
var groups = []struct {
	name, about string
	tests       func(options) []test
	onlyAsked   bool // not among the tests of a run without -test
}{
	{name: "rtt", about: "round trip, one connection", tests: roundTripTests},
	{name: "parked", about: "the same while nobody polls", tests: parkedTests},
	{name: "throughput", about: "large writes, one way", tests: throughputTests},
	{name: "oneway", about: "small writes, one way", tests: oneWayTests},
	{name: "requests", about: "round trips on many connections at once", tests: requestTests},
	{name: "gnet", about: "the same by gnet event handlers on both ends", tests: eventTests},
	{name: "open", about: "opening connections", tests: openTests},
	{name: "idle", about: "memory of idle connections", tests: idleTests},
	{name: "floor", about: "what shared memory allows for a round trip, and for throughput", tests: floorTests},
	{name: "gnetidle", about: "memory of idle connections that event handlers have", tests: eventIdleTests, onlyAsked: true},
}

// suite is the list of tests that the options choose.
func suite(o options) []test {
	var tests []test
	for _, g := range groups {
		if o.Tests.has(g.name) {
			tests = append(tests, g.tests(o)...)
		}
	}
	for i := range tests {
		if tests[i].Workload.Rate > 0 {
			tests[i].Metrics = append(tests[i].Metrics, lateness)
		}
	}
	return tests
}

// workload with what all tests share.
func (o options) workload(k kind, size, conns int) workload {
	w := workload{
		Kind:     k,
		Size:     size,
		Conns:    conns,
		Duration: o.Duration,
		Warmup:   o.Warmup,
		Profile:  o.Profile,
	}
	if k == roundTrips {
		w.Rate = o.Rate
	}
	return w
}

func roundTripTests(o options) []test {
	var tests []test
	for _, size := range o.Sizes {
		tests = append(tests, test{
			Name:     fmt.Sprintf("rtt-%d", size),
			Title:    fmt.Sprintf("round trip, %s", formatSize(size)),
			Workload: o.workload(roundTrips, size, 1),
			Metrics:  []metric{p50, p99, p999, cpuPerOp},
		})
	}
	return tests
}

func parkedTests(o options) []test {
	w := o.workload(roundTrips, o.Message, 1)
	w.Profile = "efficient"
	return []test{{
		Name:     fmt.Sprintf("parked-%d", w.Size),
		Title:    fmt.Sprintf("round trip, %s, nobody polls", formatSize(w.Size)),
		Workload: w,
		Metrics:  []metric{p50, p99, p999, cpuPerOp},
	}}
}

func throughputTests(o options) []test {
	return streamTests(o, "throughput", "throughput", o.Bulk, throughput, cpuPerGiB)
}

func oneWayTests(o options) []test {
	return streamTests(o, "oneway", "one-way messages", o.Message, rate, cpuPerOp)
}

func streamTests(o options, name, title string, size int, metrics ...metric) []test {
	var tests []test
	for _, conns := range o.Streams {
		t := test{
			Name:     fmt.Sprintf("%s-%d", name, size),
			Title:    fmt.Sprintf("%s, %s", title, formatSize(size)),
			Workload: o.workload(oneWay, size, conns),
			Metrics:  metrics,
		}
		if conns > 1 {
			t.Name += fmt.Sprintf("-%d", conns)
			t.Title += fmt.Sprintf(", %d connections", conns)
		}
		tests = append(tests, t)
	}
	return tests
}

func requestTests(o options) []test {
	var tests []test
	for _, conns := range o.Conns {
		tests = append(tests, test{
			Name:     fmt.Sprintf("requests-%d", conns),
			Title:    fmt.Sprintf("requests, %s, %s", formatSize(o.Message), connections(conns)),
			Workload: o.workload(roundTrips, o.Message, conns),
			Metrics:  []metric{rate, p99, cpuPerOp},
		})
	}
	return tests
}

// eventTests are closed loops whatever -rate says: a handler sends a request
// when it gets an answer.
func eventTests(o options) []test {
	var tests []test
	for _, size := range o.EventSizes {
		for _, conns := range o.EventConns {
			tests = append(tests, o.byHandlers(test{
				Name:     fmt.Sprintf("gnet-%d-%d", size, conns),
				Title:    fmt.Sprintf("gnet echo, %s, %s", formatSize(size), connections(conns)),
				Workload: o.workload(roundTrips, size, conns),
				Metrics:  []metric{rate, p50, p99, cpuPerOp},
			}))
		}
	}
	return tests
}

// byHandlers is the test with event handlers instead of goroutines.
func (o options) byHandlers(t test) test {
	t.Workload.Loops, t.Workload.Rate = o.Loops, 0
	if o.Loops > 1 {
		t.Title += fmt.Sprintf(", %d loops", o.Loops)
	}
	return t
}

func openTests(o options) []test {
	var tests []test
	for _, dialers := range o.Dialers {
		tests = append(tests, test{
			Name:     fmt.Sprintf("open-%d", dialers),
			Title:    fmt.Sprintf("connections opened, %d at a time", dialers),
			Workload: o.workload(openings, o.Message, dialers),
			Metrics:  []metric{rate, p99, cpuPerOp},
		})
	}
	return tests
}

func idleTests(o options) []test {
	return []test{{
		Name:     fmt.Sprintf("idle-%d", o.Idle),
		Title:    fmt.Sprintf("idle connection, %d open", o.Idle),
		Workload: o.workload(idling, o.Message, o.Idle),
		Metrics:  []metric{goMemory, goHeap, resident},
	}}
}

func eventIdleTests(o options) []test {
	return []test{o.byHandlers(test{
		Name:     fmt.Sprintf("gnetidle-%d", o.Idle),
		Title:    fmt.Sprintf("gnet, idle connection, %d open", o.Idle),
		Workload: o.workload(idling, o.Message, o.Idle),
		Metrics:  []metric{goMemory, goHeap, resident},
	})}
}

// floorTests are of this machine's memory alone.
func floorTests(o options) []test {
	line := o.workload(cacheLine, minMessage, 1)
	ring := o.workload(bareRing, o.Bulk, 1)
	for _, w := range []*workload{&line, &ring} {
		// A processor does the same from the first moment on.
		w.Rate, w.Duration, w.Warmup = 0, w.Duration/2, w.Warmup/5
	}
	return []test{
		{
			Name:     "floor-line",
			Title:    "floor: a cache line to and fro",
			Workload: line,
			Pin:      "two",
			Floor:    &floor{Metric: p50, Of: fmt.Sprintf("rtt-%d", o.Sizes[0])},
		},
		{
			Name:     "floor-ring",
			Title:    "floor: a bare ring, two copies, " + formatSize(o.Bulk),
			Workload: ring,
			Pin:      "two",
			Floor:    &floor{Metric: throughput, Of: fmt.Sprintf("throughput-%d", o.Bulk)},
		},
	}
}

func connections(n int) string {
	if n == 1 {
		return "1 connection"
	}
	return fmt.Sprintf("%d connections", n)
}
