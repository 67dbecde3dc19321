package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs/guest/internal/wire"
)

// endTime is how long a program that has come to its time limit may still say
// where it hangs, and how long a peer may take to end after the first guest.
const endTime = 5 * time.Second

// run is one run of a program, in one guest or in a pair.
type run struct {
	options  *options
	kernel   kernel
	archives []string
	notes    func(format string, args ...any)
	began    tscPoint // the start of this program

	guests []*guest
}

// perform runs the program and returns its exit status.
func (r *run) perform() (int, error) {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT)
	defer r.kill()
	err := r.boot(signals)
	if err == nil {
		err = r.await(signals)
	}
	if err == nil {
		err = r.endPeer()
	}
	r.kill()
	if err != nil {
		return failure, fmt.Errorf("%w\n%s", err, r.consoles())
	}
	if slices.ContainsFunc(r.guests, func(g *guest) bool { return g.machine.console.complaints() }) {
		fmt.Fprintf(os.Stderr, "guest: the kernel has complained\n%s", r.consoles())
	}
	status := r.guests[0].status
	if status.Signal != 0 {
		fmt.Fprintf(os.Stderr, "guest: the program was killed by signal %d (%v)\n", status.Signal, unix.Signal(status.Signal))
	}
	return status.ExitCode(), nil
}

// boot boots the guests, and again if the kernel of one does not come up: emulated, it
// hangs now and then before it runs anything of ours.
func (r *run) boot(signals <-chan os.Signal) error {
	for n := 1; ; n++ {
		if err := r.start(); err != nil {
			return err
		}
		err := r.awaitReady(signals)
		if n == boots || !errors.Is(err, errNotBooted) {
			return err
		}
		r.kill()
		fmt.Fprintf(os.Stderr, "guest: %v\n%sguest: it is booted once more\n", err, r.consoles())
		r.guests = nil
	}
}

// kill ends the guests' machines.
func (r *run) kill() {
	for _, g := range r.guests {
		g.machine.kill()
	}
}

// start starts the guests' machines.
func (r *run) start() error {
	count := 1
	var wires [2]*os.File
	if r.options.pair {
		count = 2
		var err error
		if wires, err = socketPair(); err != nil {
			return err
		}
		defer wires[0].Close()
		defer wires[1].Close()
	}
	for i := range count {
		job, err := r.job(i)
		if err != nil {
			return err
		}
		initrd, err := makeInitrd(context.Background(), r.archives, r.options, job)
		if err != nil {
			return err
		}
		defer initrd.Close()
		g := &guest{
			collect: slices.Concat(job.Files, job.Directories),
			out:     os.Stdout, errs: os.Stderr,
			notes: r.notes,
			began: time.Now(),
			ready: make(chan struct{}), done: make(chan struct{}),
		}
		p := plan{
			kernel: r.kernel.image, initrd: initrd,
			memory: r.options.memory, cpus: r.options.cpus, accel: r.options.accel,
			tsc: r.began.frequency(), append: r.options.append,
			wire: wires[i], mac: fmt.Sprintf("52:54:00:00:00:%02x", i+1),
		}
		if r.options.verbose {
			p.echo = os.Stderr
		}
		if i > 0 {
			peer := &peerOutput{}
			if r.options.verbose {
				peer.echo = os.Stderr
			}
			g.out, g.errs = peer, peer
		}
		if g.machine, err = boot(p); err != nil {
			return err
		}
		r.guests = append(r.guests, g)
		go g.follow()
	}
	return nil
}

// job returns what a guest does; the second one is the peer.
func (r *run) job(index int) (wire.Job, error) {
	o := r.options
	names := slices.Clone(modules)
	for _, device := range o.devices {
		if name, ok := deviceModules[deviceKind(device)]; ok {
			names = append(names, name)
		}
	}
	if o.pair {
		names = append(names, pairModules...)
	}
	order, err := r.kernel.bootOrder(names...)
	if err != nil {
		return wire.Job{}, err
	}
	job := wire.Job{
		Devices: o.devices,
		Memlock: uint64(o.memlock) * 1024,
		Program: o.program,
		Args:    o.args,
		Env:     o.environment(os.Environ()),
		Dir:     "/root",
		Merge:   sameFile(os.Stdout, os.Stderr),
	}
	if o.memlock < 0 {
		job.Memlock = unix.RLIM_INFINITY
	}
	for _, name := range order {
		path := moduleDirectory(r.kernel.release) + "/" + name + ".ko"
		job.Modules = append(job.Modules, wire.Module{Path: path, Parameters: moduleParameters[name]})
	}
	if !o.inside {
		if job.Dir, err = os.Getwd(); err != nil {
			return wire.Job{}, err
		}
		if o.program, err = exec.LookPath(o.program); err != nil {
			return wire.Job{}, err
		}
		if job.Program, err = filepath.Abs(o.program); err != nil {
			return wire.Job{}, err
		}
		job.Args = testArgs(o.args)
		job.Files, job.Directories = results(o.args, job.Dir)
	}
	if o.pair {
		job.Pair = index + 1
		job.Env = append(job.Env, fmt.Sprintf("RAMJET_PEER=10.1.0.%d", 2-index))
	}
	if index > 0 {
		job.Env = append(job.Env, "RAMJET_ROLE=peer")
		job.Merge, job.Files, job.Directories = true, nil, nil
	}
	return job, nil
}

// errNotBooted is what boot may try again after.
var errNotBooted = errors.New("the guest has not booted")

// awaitReady waits until the programs can start, and lets those of a pair start
// together. The time limit ends it too, and a signal to this program.
func (r *run) awaitReady(signals <-chan os.Signal) error {
	deadline := time.After(r.options.boot)
	for _, g := range r.guests {
		select {
		case <-g.ready:
		case <-g.done:
			switch {
			case errors.Is(g.err, errEnded):
				return fmt.Errorf("%w: %w", errNotBooted, g.err)
			case g.err != nil:
				return g.err
			}
			return errors.New("the guest has ended before its program could start")
		case s := <-signals:
			return fmt.Errorf("stopped by a signal: %v", s)
		case <-deadline:
			return fmt.Errorf("%w within %v", errNotBooted, r.options.boot)
		}
	}
	for _, g := range r.guests {
		if r.options.pair {
			g.send(wire.Begin)
		}
	}
	return nil
}

// await waits for the first guest's end, which comes by itself, with a time limit,
// or with a signal to this program.
func (r *run) await(signals <-chan os.Signal) error {
	var deadline <-chan time.Time
	limit := r.options.timeLimit()
	if limit > 0 {
		deadline = time.After(limit)
	}
	var peerDone <-chan struct{}
	if r.options.pair {
		peerDone = r.guests[1].done
	}
	for {
		select {
		case <-r.guests[0].done:
			return r.guests[0].err
		case <-peerDone:
			// The first guest may go on without the other's program, but not without
			// its kernel.
			if err := r.guests[1].crash(); err != nil {
				return fmt.Errorf("peer: %w", err)
			}
			peerDone = nil
		case s := <-signals:
			if s == unix.SIGQUIT {
				r.tracebacks()
			}
			return fmt.Errorf("stopped by a signal: %v", s)
		case <-deadline:
			r.tracebacks()
			return fmt.Errorf("the program has not ended within %v", limit)
		}
	}
}

// tracebacks lets Go programs in the guests say where their goroutines are.
func (r *run) tracebacks() {
	patience := time.After(endTime)
	for _, g := range r.guests {
		g.send(wire.Signal, byte(unix.SIGQUIT))
	}
	for _, g := range r.guests {
		select {
		case <-g.done:
		case <-patience:
			return
		}
	}
}

// endPeer lets a pair's second guest come to its end and says what went wrong
// there. A peer that waits for more after the first one's end is no failure, nor
// is one that has turned itself off, which is how a test lets a machine die.
func (r *run) endPeer() error {
	if len(r.guests) < 2 {
		return nil
	}
	peer := r.guests[1]
	select {
	case <-peer.done:
	case <-time.After(endTime):
		return nil
	}
	if err := peer.crash(); err != nil {
		return fmt.Errorf("peer: %w", err)
	}
	if code := peer.status.ExitCode(); code != 0 {
		return fmt.Errorf("peer: exit status %d", code)
	}
	return nil
}

// consoles returns what a failure's reader wants to see: each guest's console, and
// the peer's output if nobody has seen it yet.
func (r *run) consoles() string {
	var b strings.Builder
	for i, g := range r.guests {
		if !r.options.verbose {
			fmt.Fprintf(&b, "--- console of guest %d:\n%s\n", i+1, tail(g.machine.console.String(), 16<<10))
		}
		if peer, ok := g.out.(*peerOutput); ok && peer.echo == nil {
			fmt.Fprintf(&b, "--- output of the peer:\n%s\n", tail(peer.String(), 64<<10))
		}
	}
	return b.String()
}

// peerOutput takes a peer's output: it is shown only if it explains a failure.
type peerOutput struct{ console }

var _ io.Writer = (*peerOutput)(nil)

// sameFile says whether two files are one, so that the order of what is written to
// them matters.
func sameFile(a, b *os.File) bool {
	x, err := a.Stat()
	if err != nil {
		return false
	}
	y, err := b.Stat()
	return err == nil && os.SameFile(x, y)
}
