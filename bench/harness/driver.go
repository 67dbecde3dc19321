package harness

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"
)

// patience with a process that gives no answer: long beside anything but a
// hang, even on a busy machine.
const patience = 15 * time.Second

// measureAll runs the chosen tests and returns the report. The error is for
// what makes the whole run useless; what fails within a test is in the
// report.
func measureAll(ctx context.Context, o options, stderr io.Writer) (report, error) {
	dir, err := os.MkdirTemp("", "bench") // short: a Unix socket's path has about 100 bytes
	if err != nil {
		return report{}, fmt.Errorf("make directory for sockets: %w", err)
	}
	defer os.RemoveAll(dir)
	if err := makeProfileDir(o.profileDir); err != nil {
		return report{}, err
	}
	at := place{site: site{Host: "127.0.0.1", Dir: dir}, profileDir: o.profileDir, verbose: o.verbose, stderr: stderr, patience: patience}
	if o.Containers {
		if err := at.contain(); err != nil {
			return report{}, err
		}
		defer at.release()
	}
	r := report{Date: time.Now(), System: thisSystem(), Options: o, Transports: o.Transports}
	begin := processorTimesNow()
	tests := o.tests()
	p := newProgress(stderr, len(tests)*o.Rounds*len(o.Transports))
	for n, t := range tests {
		p.test(n+1, len(tests), t.Title)
		say := func(round int, transport string) {
			p.round(n+1, len(tests), t.Title, round, o.Rounds, transport)
		}
		r.Results = append(r.Results, measureTest(ctx, t, o, at, say))
		if ctx.Err() != nil {
			return r, context.Cause(ctx)
		}
	}
	p.finish()
	if run := processorTimesNow().since(begin); run.all > 0 {
		r.System.Stolen = run.stolen / run.all
	}
	return r, nil
}

// measureTest runs one test: a pair of processes for each transport, all
// there at once but at work one after the other, a short round each in turn,
// so that what else goes on in the machine hits all of them alike. Where memory
// is measured each round has new processes.
func measureTest(ctx context.Context, t test, o options, at place, say func(round int, transport string)) result {
	res := result{test: t, Cells: make([]cell, len(o.Transports))}
	names, cells := o.Transports, res.Cells
	if t.Floor != nil {
		for i, name := range names {
			cells[i].Transport = name // has no part in it
		}
		names, cells = []string{"memory"}, make([]cell, 1)
		res.Memory = &cells[0]
	}
	pairs := make([]*pair, len(names))
	end := func(i int, err error) {
		if p := pairs[i]; p != nil {
			pairs[i] = nil
			if err != nil || ctx.Err() != nil {
				p.stop(killAfter)
			} else {
				err = p.stop(at.patience)
			}
		}
		if err != nil {
			cells[i].count(1, err.Error())
		}
	}
	begin := func(i int) {
		var err error
		if pairs[i], err = startPair(ctx, t, names[i], at); err != nil {
			end(i, err)
		}
	}
	pin := t.Pin
	if pin == "" {
		pin = o.Pin
	}
	var pinErr error
	at.serverCPU, at.clientCPU, pinErr = cpus(pin)
	for i, name := range names {
		cells[i].Transport = name
		err := pinErr
		if err == nil && t.Floor == nil {
			err = allowFor(name, t.Workload, len(names))
		}
		if err != nil {
			cells[i].LeftOut = err.Error()
			continue
		}
		begin(i)
	}
	rounds := o.Rounds
	if t.Once {
		rounds = 1
	}
	for n := range rounds {
		for i, name := range names {
			say(n+1, name)
			if n > 0 && pairs[i] != nil && t.Workload.holds() {
				// The connections of the round before have left memory that those of this one would use.
				end(i, nil)
				begin(i)
			}
			if pairs[i] == nil || ctx.Err() != nil {
				continue
			}
			measured, err := pairs[i].measure(ctx)
			if err != nil {
				end(i, err)
				continue
			}
			cells[i].add(measured)
		}
	}
	for i := range pairs {
		end(i, nil)
		cells[i].conclude()
	}
	return res
}
