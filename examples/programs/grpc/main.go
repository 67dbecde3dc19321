// Grpc is a gRPC server and client that talk over rnet: the server gets rnet's
// listener, the client rnet's dialer, and nothing else changes.
//
//	go run -C examples/programs ./grpc
//
// starts both, the server in a process of its own, makes unary and streaming
// calls from many goroutines, checks every answer, and says which transport
// they got. RNET_TRANSPORT=tcp in front of it shows the same over TCP. The two
// ends can be started apart, too:
//
//	go run -C examples/programs ./grpc -listen 127.0.0.1:9000
//	go run -C examples/programs ./grpc -dial 127.0.0.1:9000
//
// The service is that of gRPC's interoperability tests, whose messages and
// stubs come with gRPC.
package main

import (
	"context"
	"errors"
	"flag"
	"io"

	"github.com/seed-b9b531af/ramjet/examples/internal/program"
)

func main() { program.Main("grpc", run) }

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("grpc", flag.ContinueOnError)
	listen := flags.String("listen", "", "be the server, on this `address`")
	var c client
	flags.StringVar(&c.addr, "dial", "", "be the client, of the server at this `address`")
	flags.IntVar(&c.calls, "n", 2000, "unary calls that the client makes, and messages that it streams")
	flags.IntVar(&c.workers, "workers", 16, "goroutines that make them")
	flags.IntVar(&c.maxBody, "body", 16<<10, "longest payload in bytes")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if c.calls < 1 || c.workers < 1 || c.maxBody < 0 {
		return errors.New("-n and -workers must be at least 1, -body at least 0")
	}
	switch {
	case *listen != "":
		return serve(ctx, *listen, &echo{}, out)
	case c.addr != "":
		return c.run(ctx, out)
	}
	return program.WithServer(ctx, func(addr string) error {
		c.addr = addr
		return c.run(ctx, out)
	})
}
