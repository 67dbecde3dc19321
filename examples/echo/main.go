// Echo is a server that sends back what it gets, and a client that measures
// how long that takes.
//
//	go run ./examples/echo
//
// starts both, the server in a process of its own, and says which transport
// they got. RNET_TRANSPORT=tcp in front of it shows the same over TCP. The two
// ends can be started apart, too:
//
//	go run ./examples/echo -listen 127.0.0.1:9000
//	go run ./examples/echo -dial 127.0.0.1:9000
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"

	"github.com/seed-b9b531af/ramjet/examples/internal/child"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := echo(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "echo:", err)
		os.Exit(1)
	}
}

func echo(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("echo", flag.ContinueOnError)
	listen := flags.String("listen", "", "be the server, on this `address`")
	dial := flags.String("dial", "", "be the client, of the server at this `address`")
	count := flags.Int("n", 10000, "messages that the client sends")
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch {
	case *listen != "":
		return serve(ctx, *listen, out)
	case *dial != "":
		return call(ctx, *dial, *count, out)
	}
	server, err := child.Start(ctx, "-listen", "127.0.0.1:0")
	if err != nil {
		return err
	}
	err = errors.Join(call(ctx, server.Addr, *count, out), server.Stop())
	if ctx.Err() != nil {
		return context.Cause(ctx) // which is why whatever else failed
	}
	return err
}
