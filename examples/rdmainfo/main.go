// Rdmainfo shows what RDMA a host has and what a connection would make of it:
// devices, ports and their GIDs, the limits that an administrator has set, live
// traffic, and for an address which transport a dial takes and why not a
// faster one.
//
//	go run ./examples/rdmainfo
//	go run ./examples/rdmainfo -json
//	go run ./examples/rdmainfo -watch
//	go run ./examples/rdmainfo storage-7:9000
//	go run ./examples/rdmainfo -selftest
//
// The self test connects two queue pairs on each active port of each device with each
// other, and tries all operations, errors, latencies and, for what is left of ten
// seconds, traffic that is compared. It leaves out what a device does not have, and says
// so. What it prints can be pasted into an issue. It
// uses the experimental driver of a ConnectX too, which is off otherwise.
//
// It needs no privileges, and says so where they would show more. For an
// address it connects once and closes the connection; the server sees a client
// that had nothing to say.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/seed-b9b531af/ramjet/examples/internal/program"
)

func main() { program.Main("rdmainfo", rdmainfo) }

func rdmainfo(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("rdmainfo", flag.ContinueOnError)
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "usage: rdmainfo [flags] [host:port ...]")
		flags.PrintDefaults()
	}
	asJSON := flags.Bool("json", false, "print JSON, for programs")
	watching := flags.Bool("watch", false, "print the traffic of each port again and again, until interrupted")
	every := flags.Duration("every", time.Second, "with -watch: how often")
	rounds := flags.Int("n", 0, "with -watch: stop after so many `times`; 0: never")
	testing := flags.Bool("selftest", false, "test the devices, each with itself, and print a report to paste into an issue")
	device := flags.String("device", "", "with -selftest: the only `name` to test")
	most := flags.Duration("time", 10*time.Second, "with -selftest: how long, for a port")
	timeout := flags.Duration("timeout", 5*time.Second, "for an address: how long the dial may take, and each question for a route")
	headStart := flags.Duration("headstart", 0, "for an address: how long to wait before TCP is tried beside the fast way; 0: as rnet.Dial does")
	if err := flags.Parse(args); err != nil {
		return err
	}
	addresses := flags.Args()
	if *watching {
		if *every <= 0 || len(addresses) > 0 {
			return errors.New("-watch takes a positive -every and no addresses")
		}
		return watch(ctx, out, *every, *rounds, *asJSON)
	}
	if *testing {
		if len(addresses) > 0 || *asJSON {
			return errors.New("-selftest takes no addresses, and prints no JSON")
		}
		return selfTest(ctx, out, *device, *most)
	}

	report := collect()
	for _, addr := range addresses {
		report.Addresses = append(report.Addresses, try(ctx, addr, *timeout, *headStart, fabrics()...))
	}
	if *asJSON {
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		return enc.Encode(report)
	}
	w := &printer{out: out}
	if len(addresses) == 0 {
		w.report(&report)
	}
	for i := range report.Addresses {
		w.address(&report.Addresses[i])
	}
	return w.err
}
