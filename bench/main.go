package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
)

func main() {
	runIfChild()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := bench(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errUsage):
		os.Exit(2)
	default:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// errUsage says that the command line is wrong, and that stderr has said why.
var errUsage = errors.New("usage")

// bench is the command. It fails if any operation of any test did.
func bench(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	parse := parseOptions
	if len(args) > 0 && args[0] == programsPage {
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
