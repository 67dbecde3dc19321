// Rpc is a net/rpc server and client that talk over rnet.
//
//	go run ./examples/rpc
//
// starts both, the server in a process of its own, makes calls from many
// goroutines, checks every answer, and says which transport they got.
// RNET_TRANSPORT=tcp in front of it shows the same over TCP. The two ends can
// be started apart, too:
//
//	go run ./examples/rpc -listen 127.0.0.1:9000
//	go run ./examples/rpc -dial 127.0.0.1:9000
package main

import (
	"context"
	"errors"
	"flag"
	"io"

	"github.com/seed-b9b531af/ramjet/examples/internal/program"
)

func main() { program.Main("rpc", run) }

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("rpc", flag.ContinueOnError)
	listen := flags.String("listen", "", "be the server, on this `address`")
	var c client
	flags.StringVar(&c.addr, "dial", "", "be the client, of the server at this `address`")
	flags.IntVar(&c.calls, "n", 10000, "calls that the client makes")
	flags.IntVar(&c.workers, "workers", 16, "goroutines that make them, on one connection")
	flags.IntVar(&c.maxBody, "body", 4<<10, "longest argument in bytes")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if c.calls < 1 || c.workers < 1 || c.maxBody < 1 {
		return errors.New("-n, -workers and -body must be at least 1")
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
