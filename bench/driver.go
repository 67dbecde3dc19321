package main

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
	at := place{dir: dir, profileDir: o.profileDir, verbose: o.verbose, stderr: stderr, patience: patience}
	if at.serverCPU, at.clientCPU, err = o.cpus(); err != nil {
		return report{}, err
	}
	r := report{Date: time.Now(), System: thisSystem(), Options: o, Transports: o.Transports}
	tests := suite(o)
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
	return r, nil
}

// measureTest runs one test: a pair of processes for each transport, all
// there at once but at work one after the other, a short round each in turn,
// so that what else goes on in the machine hits all of them alike.
func measureTest(ctx context.Context, t test, o options, at place, say func(round int, transport string)) result {
	res := result{test: t, Cells: make([]cell, len(o.Transports))}
	pairs := make([]*pair, len(o.Transports))
	end := func(i int, err error) {
		if err != nil {
			res.Cells[i].count(1, err.Error())
		}
		if pairs[i] != nil {
			pairs[i].stop()
			pairs[i] = nil
		}
	}
	for i, name := range o.Transports {
		res.Cells[i].Transport = name
		err := allowFor(name, t.Workload)
		if err != nil {
			res.Cells[i].LeftOut = err.Error()
			continue
		}
		if pairs[i], err = startPair(ctx, t, name, at); err != nil {
			end(i, err)
		}
	}
	for n := range o.Rounds {
		for i, name := range o.Transports {
			say(n+1, name)
			if pairs[i] == nil || ctx.Err() != nil {
				continue
			}
			measured, err := pairs[i].measure(ctx)
			if err != nil {
				end(i, err)
				continue
			}
			res.Cells[i].add(measured)
		}
	}
	for i := range pairs {
		end(i, nil)
		res.Cells[i].conclude()
	}
	return res
}
