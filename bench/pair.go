package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	hdr "github.com/HdrHistogram/hdrhistogram-go"
)

// pair is the two processes of one transport in one test.
type pair struct {
	w              workload
	server, client *process
	counted        int // failures of the server that earlier rounds have reported
}

// round is what one round of a pair gave.
type round struct {
	values   map[metric]float64
	latency  *hdr.Histogram
	failures int
	failure  string // the first of them
	used     string
	opened   int64 // connections, in this and all rounds before
	fellBack int64 // of those, TCP instead of what was asked for
}

// place says where and how the processes of a run are started.
type place struct {
	dir                  string // for sockets
	serverCPU, clientCPU int    // -1 for anywhere
	profileDir           string // "" for no CPU profiles
	verbose              bool
	stderr               io.Writer     // of all processes at once: a file, or safe for that
	patience             time.Duration // for a process, beyond the time that its work takes, before it counts as hung
}

func startPair(ctx context.Context, t test, transport string, at place) (*pair, error) {
	a := assignment{
		Role:       serving,
		Transport:  transport,
		Dir:        at.dir,
		CPUProfile: profilePath(at.profileDir, t.Name, transport, serving),
		Workload:   t.Workload,
	}
	server, err := start(a, at.serverCPU, at)
	if err != nil {
		return nil, err
	}
	hello, err := server.await(ctx, 0)
	if err != nil {
		server.stop()
		return nil, fmt.Errorf("listen: %w", err)
	}
	a.Role, a.Addr = dialing, hello.Addr
	a.CPUProfile = profilePath(at.profileDir, t.Name, transport, dialing)
	client, err := start(a, at.clientCPU, at)
	if err != nil {
		server.stop()
		return nil, err
	}
	return &pair{w: t.Workload, server: server, client: client}, nil
}

func profilePath(dir, test, transport string, r role) string {
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, fmt.Sprintf("%s-%s-%s.pprof", test, transport, r))
}

func (p *pair) stop() {
	p.client.stop()
	p.server.stop()
}

// standing is what the two processes have used so far.
type standing struct {
	cpu                   time.Duration // of the server
	heap, stack, resident float64       // of both
}

// measure runs one round. An error means that the pair is of no further use;
// failed operations are no error but counted in the round.
func (p *pair) measure(ctx context.Context) (round, error) {
	ready, err := p.client.ask(ctx, prepare, p.w.Warmup)
	if err != nil {
		return round{}, err
	}
	if ready.Failures > 0 { // the round is lost, the next one may be better
		return round{latency: newHistogram(), failures: ready.Failures, failure: ready.Failure}, nil
	}
	before, err := p.stand(ctx)
	if err != nil {
		return round{}, err
	}
	if _, err := p.client.ask(ctx, run, p.w.Duration); err != nil {
		return round{}, err
	}
	after, err := p.stand(ctx)
	if err != nil {
		return round{}, err
	}
	done, err := p.client.ask(ctx, finish, 0)
	if err != nil {
		return round{}, err
	}
	last, err := p.server.ask(ctx, snapshot, 0)
	if err != nil {
		return round{}, err
	}
	latency, err := decodeLatency(done.Latency)
	if err != nil {
		return round{}, err
	}
	r := round{
		latency:  latency,
		failures: done.Failures + last.Failures - p.counted,
		failure:  done.Failure,
		used:     done.Used,
		opened:   done.Opened,
		fellBack: done.FellBack,
	}
	if p.counted == 0 && r.failure == "" {
		r.failure = last.Failure
	}
	p.counted = last.Failures
	r.values = p.w.values(done, latency, before, after)
	return r, nil
}

// stand reads the server's CPU time, and for idle connections the memory of
// both processes.
func (p *pair) stand(ctx context.Context) (standing, error) {
	cmd := snapshot
	if p.w.Kind == idling {
		cmd = weigh
	}
	server, err := p.server.ask(ctx, cmd, 0)
	if err != nil {
		return standing{}, err
	}
	s := standing{cpu: server.CPU}
	if cmd != weigh {
		return s, nil
	}
	client, err := p.client.ask(ctx, cmd, 0)
	if err != nil {
		return standing{}, err
	}
	s.heap = float64(server.Heap) + float64(client.Heap)
	s.stack = float64(server.Stack) + float64(client.Stack)
	s.resident = float64(server.Resident) + float64(client.Resident)
	return s, nil
}

// values works out the metrics of a round.
func (w workload) values(done reply, latency *hdr.Histogram, before, after standing) map[metric]float64 {
	v := map[metric]float64{}
	ops := float64(done.Ops)
	if ops == 0 || done.Elapsed <= 0 {
		return v
	}
	if w.Kind == idling {
		v[goHeap] = (after.heap - before.heap) / ops
		v[goMemory] = v[goHeap] + (after.stack-before.stack)/ops
		if after.resident > 0 {
			v[resident] = (after.resident - before.resident) / ops
		}
		return v
	}
	cpu := float64(done.CPU + after.cpu - before.cpu)
	bytes := ops * float64(w.Size)
	v[rate] = ops / done.Elapsed.Seconds()
	v[throughput] = bytes / done.Elapsed.Seconds()
	v[cpuPerOp] = cpu / ops
	v[cpuPerGiB] = cpu / (bytes / (1 << 30))
	if w.Rate > 0 {
		v[lateness] = float64(done.Late)
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
