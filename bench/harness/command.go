// Package harness is the benchmark of the commands bench and
// examples/programs/bench: it starts this program again as the processes that
// are measured, lets them work in turn, and reports what they tell. What it
// measures and how stands in the documentation of the command bench.
package harness

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// Main is the command, whose arguments are the process's. With programs it is
// the page of programs with these in place of its own. It does not return.
func Main(list ...Program) {
	Begin(list...)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the next one ends the process at once
	err := Run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
		os.Exit(0)
	case errors.Is(err, errUsage):
		os.Exit(2)
	default:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// Begin is the start of Main, and of a test of such a command: if the process
// is one that is measured it does that and does not return. Run comes after it.
func Begin(list ...Program) {
	if len(list) > 0 {
		programs, programsAlone = list, true
	}
	runIfChild()
}

// programsAlone says that Begin has set programs, and that they are all that
// the page has.
var programsAlone bool

// errUsage says that the command line is wrong, and that stderr has said why.
var errUsage = errors.New("usage")

// Run is the command without the process around it. It fails if any operation
// of any test did.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	parse := parseOptions
	switch {
	case programsAlone:
		parse = parseProgramOptions
	case len(args) > 0 && args[0] == programsPage:
		parse, args = parseProgramOptions, args[1:]
	}
	o, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return err
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	if o.list {
		for _, t := range o.tests() {
			fmt.Fprintf(stdout, "%-28s %s\n", t.Name, t.Title)
		}
		return nil
	}
	for _, file := range []string{o.jsonFile, o.svgFile} {
		if err := writable(file); err != nil {
			return err
		}
	}
	r, err := measureAll(ctx, o, stderr)
	if err != nil {
		return err
	}
	if err := r.writeTable(stdout); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	if o.jsonFile != "" {
		err = r.writeJSON(o.jsonFile)
	}
	if o.svgFile != "" {
		err = errors.Join(err, r.writeSVG(o.svgFile))
	}
	if n := r.failures(); n > 0 {
		err = errors.Join(err, fmt.Errorf("%d failures", n))
	}
	return err
}

// writable says before minutes of work whether a file can be written after them. What is in it stays.
func writable(file string) error {
	if file == "" {
		return nil
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE, 0o666)
	if err != nil {
		return err
	}
	return f.Close()
}
