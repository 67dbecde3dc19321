package harness

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/container"

	hdr "github.com/HdrHistogram/hdrhistogram-go"
)

// pair is the processes of one transport in one test: a server and a client,
// or what the workload has in their place.
type pair struct {
	w          workload
	servers    []*process // none if the client has both ends; the one that is dialed is the last
	clients    []*process
	neighbours []*process

	// what earlier rounds have reported
	counted          int // failures of the servers
	opened, fellBack int64
}

// round is what one round of a pair gave.
type round struct {
	values   map[metric]float64
	latency  *hdr.Histogram
	failures int
	failure  string // the first of them
	used     string
	opened   int64 // connections
	fellBack int64 // of those, TCP instead of what was asked for
}

// place says where and how the processes of a run are started.
type place struct {
	site                 site
	serverCPU, clientCPU int                     // -1 for anywhere
	containers           [2]*container.Container // nil for where this process is
	profileDir           string                  // "" for no CPU profiles
	verbose              bool
	stderr               io.Writer     // of all processes at once: a file, or safe for that
	patience             time.Duration // for a process, beyond the time that its work takes, before it counts as hung
}

func startPair(ctx context.Context, t test, transport string, at place) (*pair, error) {
	p := &pair{w: t.Workload}
	if err := p.start(ctx, t.Name, transport, at); err != nil {
		p.stop(killAfter)
		return nil, err
	}
	return p, nil
}

func (p *pair) start(ctx context.Context, test, transport string, at place) error {
	profile := func(r role) string { return profilePath(at.profileDir, test, transport, r) }
	a := assignment{Role: serving, Transport: transport, Site: at.site, Workload: p.w, CPUProfile: profile(serving)}
	if p.w.Hop {
		b := a
		b.Role, b.Transport, b.CPUProfile, b.Workload.Hop = answering, "tcp", profile(answering), false
		var err error
		if a.Backend, err = p.startServer(ctx, b, at); err != nil {
			return err
		}
	}
	if !p.w.Local {
		var err error
		if a.Addr, err = p.startServer(ctx, a, at); err != nil {
			return err
		}
	}
	for range p.w.Neighbours {
		n, err := start(assignment{Role: computes, Transport: transport}, -1, at)
		if err != nil {
			return err
		}
		p.neighbours = append(p.neighbours, n)
	}
	a.Role = dialing
	for i := range p.w.clients() {
		a.Workload.Client = i
		a.CPUProfile = ""
		if i == 0 {
			a.CPUProfile = profile(dialing)
		}
		client, err := start(a, at.clientCPU, at)
		if err != nil {
			return err
		}
		p.clients = append(p.clients, client)
	}
	return nil
}

// startServer returns the server's address.
func (p *pair) startServer(ctx context.Context, a assignment, at place) (addr string, err error) {
	server, err := start(a, at.serverCPU, at)
	if err != nil {
		return "", err
	}
	p.servers = append(p.servers, server)
	hello, err := server.await(ctx, 0)
	if err != nil {
		return "", fmt.Errorf("listen: %w", err)
	}
	return hello.Addr, nil
}

func profilePath(dir, test, transport string, r role) string {
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, fmt.Sprintf("%s-%s-%s.pprof", strings.ReplaceAll(test, "/", "-"), transport, r))
}

// stop ends the processes, each of which has the grace for it.
func (p *pair) stop(grace time.Duration) error {
	return cmp.Or(stopAll(p.clients, grace), stopAll(p.servers, grace), stopAll(p.neighbours, grace))
}

// resources is what the processes have used so far.
type resources struct {
	cpu                   time.Duration // of the servers
	heap, stack, resident float64       // of all
	whole, files          float64       // of the server
}

// measure runs one round. An error means that the pair is of no further use;
// failed operations are no error but counted in the round.
func (p *pair) measure(ctx context.Context) (round, error) {
	if err := p.beside(ctx, prepare); err != nil {
		return round{}, err
	}
	ready, err := askAll(ctx, p.clients, prepare, p.w.Warmup)
	if err != nil {
		return round{}, err
	}
	// Without all of them the round is lost. They finish it, and the next one may be better.
	var before, after resources
	if failures, _ := countFailures(ready); failures == 0 {
		if before, err = p.used(ctx); err != nil {
			return round{}, err
		}
		if _, err := askAll(ctx, p.clients, run, p.w.Duration); err != nil {
			return round{}, err
		}
		if after, err = p.used(ctx); err != nil {
			return round{}, err
		}
	}
	done, err := askAll(ctx, p.clients, finish, 0)
	if err != nil {
		return round{}, err
	}
	if err := p.beside(ctx, finish); err != nil {
		return round{}, err
	}
	last, err := askAll(ctx, p.servers, snapshot, 0)
	if err != nil {
		return round{}, err
	}
	r := round{latency: newHistogram(), opened: -p.opened, fellBack: -p.fellBack}
	var worst int64 // p99 of a client
	for _, d := range done {
		latency, err := decodeLatency(d.Latency)
		if err != nil {
			return round{}, err
		}
		r.latency.Merge(latency)
		worst = max(worst, latency.ValueAtQuantile(99))
		if r.used == "" || d.FellBack > 0 {
			r.used = d.Used
		}
		r.opened += d.Opened
		r.fellBack += d.FellBack
	}
	p.opened, p.fellBack = p.opened+r.opened, p.fellBack+r.fellBack
	r.failures, r.failure = countFailures(done)
	failures, first := countFailures(last)
	if p.counted == 0 && r.failure == "" {
		r.failure = first
	}
	r.failures += failures - p.counted
	p.counted = failures
	r.values = p.w.values(done, r.latency, before, after)
	if p.w.Clients > 1 && worst > 0 {
		r.values[worstP99] = float64(worst)
	}
	return r, nil
}

// beside lets those compute that are to, or lets them stop.
func (p *pair) beside(ctx context.Context, cmd command) error {
	if _, err := askAll(ctx, p.neighbours, cmd, 0); err != nil || !p.w.Busy {
		return err
	}
	_, err := askAll(ctx, p.servers, cmd, 0)
	return err
}

func countFailures(replies []reply) (n int, first string) {
	for _, r := range replies {
		if n == 0 {
			first = r.Failure
		}
		n += r.Failures
	}
	return n, first
}

// used reads the servers' CPU time, and for idle connections the memory of
// all processes.
func (p *pair) used(ctx context.Context) (resources, error) {
	cmd := snapshot
	if p.w.holds() {
		cmd = memoryInUse
	}
	servers, err := askAll(ctx, p.servers, cmd, 0)
	if err != nil {
		return resources{}, err
	}
	var s resources
	for _, r := range servers {
		s.cpu += r.CPU
	}
	if cmd != memoryInUse {
		return s, nil
	}
	clients, err := askAll(ctx, p.clients, cmd, 0)
	if err != nil {
		return resources{}, err
	}
	for _, r := range append(clients, servers...) {
		s.heap += float64(r.Heap)
		s.stack += float64(r.Stack)
		s.resident += float64(r.Resident)
	}
	for _, r := range servers {
		s.whole, s.files = float64(r.Whole), float64(r.Files)
	}
	return s, nil
}

// values works out the metrics of a round from what each client has done.
func (w workload) values(done []reply, latency *hdr.Histogram, before, after resources) map[metric]float64 {
	v := map[metric]float64{}
	var ops, perSecond float64
	cpu := after.cpu - before.cpu
	var late time.Duration
	for _, d := range done {
		if d.Ops == 0 || d.Elapsed <= 0 {
			continue
		}
		ops += float64(d.Ops)
		perSecond += float64(d.Ops) / d.Elapsed.Seconds()
		cpu += d.CPU
		late = max(late, d.Late)
	}
	if ops == 0 {
		return v
	}
	if w.holds() {
		v[goHeap] = (after.heap - before.heap) / ops
		v[goMemory] = v[goHeap] + (after.stack-before.stack)/ops
		if after.resident > 0 {
			v[resident] = (after.resident - before.resident) / ops
			v[serverWhole] = after.whole
		}
		if after.files > 0 {
			v[descriptors] = (after.files - before.files) / ops
		}
		return v
	}
	size := float64(w.Size)
	v[rate] = perSecond
	v[throughput] = perSecond * size
	v[cpuPerOp] = float64(cpu) / ops
	v[cpuPerGiB] = float64(cpu) / (ops * size / (1 << 30))
	if w.Rate > 0 {
		v[lateness] = float64(late)
	}
	if latency.TotalCount() > 0 {
		addQuantiles(v, latency)
	}
	return v
}

func addQuantiles(v map[metric]float64, h *hdr.Histogram) {
	v[p50] = float64(h.ValueAtQuantile(50))
	v[p99] = float64(h.ValueAtQuantile(99))
	v[p999] = float64(h.ValueAtQuantile(99.9))
}

// makeProfileDir creates the directory of -cpuprofile.
func makeProfileDir(dir string) error {
	if dir == "" {
		return nil
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return fmt.Errorf("create directory for profiles: %w", err)
	}
	return nil
}
