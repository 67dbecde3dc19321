// Nats is a nats-server in a Go program, and clients of it, that talk over rnet.
//
//	go run -C examples/programs ./nats
//
// starts the server in a process of its own, publishes, subscribes and makes
// requests from many goroutines, checks what comes, and says which transport
// the clients got. RNET_TRANSPORT=tcp in front of it shows the same over TCP.
// The two ends can be started apart, too:
//
//	go run -C examples/programs ./nats -listen 127.0.0.1:4222
//	go run -C examples/programs ./nats -dial 127.0.0.1:4222
//
// nats-server cannot be given a listener: it listens itself, by TCP. But a
// program that embeds it can have connections to it within the process. Here
// each connection that rnet accepts is carried to one of those, so that nothing
// goes over TCP that need not; it costs one copy more than a listener would.
// The client needs nothing of that kind: it takes a dialer.
package main

import (
	"context"
	"errors"
	"flag"
	"io"

	"github.com/seed-b9b531af/ramjet/examples/internal/program"
)

func main() { program.Main("nats", run) }

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("nats", flag.ContinueOnError)
	listen := flags.String("listen", "", "be the server, on this `address`")
	var c client
	flags.StringVar(&c.addr, "dial", "", "be the clients, of the server at this `address`")
	flags.IntVar(&c.messages, "n", 20000, "messages to publish")
	flags.IntVar(&c.requests, "requests", 2000, "requests to make")
	flags.IntVar(&c.workers, "workers", 8, "goroutines that make them")
	flags.IntVar(&c.maxBody, "body", 1<<10, "longest message in bytes")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if c.messages < 1 || c.requests < 0 || c.workers < 1 || c.maxBody < 0 {
		return errors.New("-n and -workers must be at least 1, -requests and -body at least 0")
	}
	switch {
	case *listen != "":
		return serve(ctx, *listen, out)
	case c.addr != "":
		return c.run(ctx, out)
	}
	return program.WithServer(ctx, func(addr string) error {
		c.addr = addr
		return c.run(ctx, out)
	})
}
