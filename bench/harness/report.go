package harness

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	hdr "github.com/HdrHistogram/hdrhistogram-go"
)

// report is everything that a run measured: what -json writes, and what the
// table and the drawing are made from.
type report struct {
	Date       time.Time `json:"date"`
	System     system    `json:"system"`
	Options    options   `json:"options"`
	Transports []string  `json:"transports"` // the columns, by name
	Results    []result  `json:"results"`
}

// system is what the figures depend on besides the code.
type system struct {
	Go     string `json:"go"`
	Kernel string `json:"kernel"`
	Arch   string `json:"arch"`
	CPU    string `json:"cpu"`
	CPUs   int    `json:"cpus"` // that this program may use

	Idle   float64 `json:"idle"`   // share of its CPU time that nobody used before the run; -1 if unknown
	Stolen float64 `json:"stolen"` // share that its host gave to others during the run, if it is a virtual machine; 0 if unknown
}

// result is a test with what each transport made of it, in the order of
// report.Transports.
type result struct {
	test
	Cells  []cell `json:"transports"`
	Memory *cell  `json:"memory,omitempty"` // of a floor, in which no transport has a part
}

// cells are all that were measured.
func (res result) cells() []cell {
	if res.Memory != nil {
		return []cell{*res.Memory}
	}
	return res.Cells
}

// cell is one transport in one test.
type cell struct {
	Transport string               `json:"transport"`
	Used      string               `json:"used"`      // what the connections are
	Opened    int64                `json:"opened"`    // connections
	FellBack  int64                `json:"fell_back"` // of those, TCP instead of what was asked for
	Rounds    []map[metric]float64 `json:"rounds"`
	Median    map[metric]float64   `json:"median"`
	Latency   *latencySummary      `json:"latency,omitempty"`
	Failures  int                  `json:"failures"`
	Failure   string               `json:"failure,omitempty"`  // the first of them
	LeftOut   string               `json:"left_out,omitempty"` // why the system does not allow the test

	all *hdr.Histogram // of all rounds
}

// latencySummary describes the latencies of all rounds together, in ns.
type latencySummary struct {
	Count int64   `json:"count"`
	Mean  float64 `json:"mean"`
	Min   int64   `json:"min"`
	P50   int64   `json:"p50"`
	P90   int64   `json:"p90"`
	P99   int64   `json:"p99"`
	P999  int64   `json:"p99.9"`
	P9999 int64   `json:"p99.99"`
	Max   int64   `json:"max"`
}

// add takes a round into the cell.
func (c *cell) add(r round) {
	c.Rounds = append(c.Rounds, r.values)
	c.count(r.failures, r.failure)
	if c.Used == "" || r.fellBack > 0 {
		c.Used = r.used
	}
	c.Opened, c.FellBack = c.Opened+r.opened, c.FellBack+r.fellBack
	if c.all == nil {
		c.all = newHistogram()
	}
	c.all.Merge(r.latency)
}

func (c *cell) count(failures int, first string) {
	c.Failures += failures
	if c.Failure == "" {
		c.Failure = first
	}
}

// conclude works out the medians, when all rounds are in.
func (c *cell) conclude() {
	byMetric := map[metric][]float64{}
	for _, values := range c.Rounds {
		for m, v := range values {
			byMetric[m] = append(byMetric[m], v)
		}
	}
	c.Median = map[metric]float64{}
	for m, values := range byMetric {
		c.Median[m] = median(values)
	}
	if c.all == nil || c.all.TotalCount() == 0 {
		return
	}
	c.Latency = &latencySummary{
		Count: c.all.TotalCount(),
		Mean:  c.all.Mean(),
		Min:   c.all.Min(),
		P50:   c.all.ValueAtQuantile(50),
		P90:   c.all.ValueAtQuantile(90),
		P99:   c.all.ValueAtQuantile(99),
		P999:  c.all.ValueAtQuantile(99.9),
		P9999: c.all.ValueAtQuantile(99.99),
		Max:   c.all.Max(),
	}
}

// failures of all tests and transports.
func (r report) failures() int {
	n := 0
	for _, res := range r.Results {
		for _, c := range res.cells() {
			n += c.Failures
		}
	}
	return n
}

// column is a transport of the report with what the whole run says of it.
type column struct {
	name, title string
	used        string // what its connections were, where they did not fall back
	fellBack    bool   // in some test, all its connections did
}

// heading of the column, which says if its figures are TCP's.
func (c column) heading() string {
	if c.fellBack {
		return c.title + " (TCP!)"
	}
	return c.title
}

func (r report) columns() []column {
	columns := make([]column, len(r.Transports))
	for i, name := range r.Transports {
		columns[i] = column{name: name, title: name}
		if t, err := transportByName(name); err == nil {
			columns[i].title = t.title
		}
		for _, res := range r.Results {
			c := res.Cells[i]
			columns[i].fellBack = columns[i].fellBack || c.FellBack > 0 && c.FellBack == c.Opened
			if c.FellBack == 0 && columns[i].used == "" {
				columns[i].used = c.Used
			}
		}
	}
	return columns
}

// baseline is the column that others are compared to, -1 if it is not there.
func (r report) baseline() int {
	for i, name := range r.Transports {
		if name == transports[0].name {
			return i
		}
	}
	return -1
}

// conditions are two lines that say what the figures were measured on and how.
func (r report) conditions() (where, how string) {
	o := r.Options
	profile := o.Profile
	if profile == "" {
		profile = "balanced (the default)"
	}
	pin := map[string]string{
		"none": "not pinned",
		"one":  "both processes pinned to one CPU",
		"two":  "each process pinned to a CPU of its own",
	}[o.Pin]
	where = fmt.Sprintf("%s, %d CPUs (%s), %s, %s", r.System.Arch, r.System.CPUs, r.System.CPU, r.System.Kernel, r.System.Go)
	if r.System.Idle >= 0 {
		where += fmt.Sprintf(", %.0f%% idle before", 100*r.System.Idle)
	}
	if o.Page == programsPage {
		how = fmt.Sprintf("closed loop unless paced (open loop), median of %d rounds of %v, ramjet profile: %s, not pinned unless it says so", o.Rounds, o.Duration, profile)
		if o.Containers {
			how += ", both processes in one container, or each in one of its own (apart)"
		}
		return where, how
	}
	how = fmt.Sprintf("%s, median of %d rounds of %v, ramjet profile: %s, %s", o.loop(), o.Rounds, o.Duration, profile, pin)
	return where, how
}

func thisSystem() system {
	return system{
		Go:     runtime.Version(),
		Kernel: kernelVersion(),
		Arch:   runtime.GOARCH,
		CPU:    cpuModel(),
		CPUs:   runtime.NumCPU(),
		Idle:   idleShare(),
	}
}

// cpuModel reads the CPU's name where the system tells it in a file.
func cpuModel() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown model"
	}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown model"
}

// idleTime is how long a run looks, before it begins, whether the machine is idle.
const idleTime = time.Second

// idleShare says which share of idleTime the processors were idle, -1 where the
// system does not tell.
func idleShare() float64 {
	before := processorTimesNow()
	time.Sleep(idleTime)
	since := processorTimesNow().since(before)
	if since.all <= 0 {
		return -1
	}
	return since.idle / since.all
}

// processorTimes are those of all processors since the system started, in ticks: the first line of
// /proc/stat (proc(5)).
type processorTimes struct{ idle, stolen, all float64 }

// processorTimesNow returns zeros where the system does not tell.
func processorTimesNow() (t processorTimes) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return t
	}
	// user, nice, system, idle, iowait, irq, softirq, steal. What guests took is in user.
	var times [8]float64
	line, _, _ := strings.Cut(string(text), "\n")
	if _, err = fmt.Sscanf(line, "cpu %f %f %f %f %f %f %f %f",
		&times[0], &times[1], &times[2], &times[3], &times[4], &times[5], &times[6], &times[7]); err != nil {
		return t
	}
	t.idle, t.stolen = times[3]+times[4], times[7]
	for _, ticks := range times {
		t.all += ticks
	}
	return t
}

func (t processorTimes) since(before processorTimes) processorTimes {
	return processorTimes{t.idle - before.idle, t.stolen - before.stolen, t.all - before.all}
}

func (r report) writeJSON(path string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encode report: %w", err)
	}
	if err := os.WriteFile(path, append(text, '\n'), 0o666); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}
