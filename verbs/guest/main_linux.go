package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs/guest/internal/inside"
)

// failure is the exit status if there was no guest, or none that came to its end.
// Programs in the guest end with theirs.
const failure = 125

// preparation limits how long making what guests consist of may take.
const preparation = 15 * time.Minute

func main() {
	if os.Getpid() == 1 && os.Args[0] == "/init" {
		inside.Main()
	}
	o, err := parse(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	status := failure
	if err == nil {
		status, err = perform(&o)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "guest: %v\n", err)
	}
	os.Exit(status)
}

// perform does what the options say and returns the exit status.
func perform(o *options) (int, error) {
	began := tscNow()
	notes := func(format string, args ...any) {
		if o.verbose {
			fmt.Fprintf(os.Stderr, "guest: "+format+"\n", args...)
		}
	}
	shop := &builder{dir: o.cache, install: o.install, log: func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, "guest: "+format+"\n", args...)
	}}
	if shop.dir == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			return failure, err
		}
		shop.dir = filepath.Join(base, "ramjet-guest")
	}
	ctx, cancel := context.WithTimeout(context.Background(), preparation)
	defer cancel()
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM)
	defer stop()
	if err := shop.requirePrograms(ctx); err != nil {
		return failure, err
	}
	kernel, err := shop.kernel(ctx, o.kernel)
	if err != nil {
		return failure, err
	}
	archive, err := shop.programs(ctx)
	if err != nil {
		return failure, err
	}
	if o.accel == "auto" {
		if o.accel, err = shop.probe(ctx, kernel); err != nil {
			return failure, err
		}
	}
	if o.program == "" {
		return 0, nil
	}
	if ctx.Err() != nil {
		return failure, ctx.Err()
	}
	stop()
	r := &run{options: o, kernel: kernel, archives: []string{archive, kernel.archive}, notes: notes, began: began}
	return r.perform()
}
