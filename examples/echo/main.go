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
//
// An address may be the path of a Unix socket, too: -listen /tmp/echo.sock. With
// RNET_TRANSPORT=tcp that is a plain one.
package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"strings"

	"github.com/seed-b9b531af/ramjet/examples/internal/program"
)

func main() { program.Main("echo", echo) }

func echo(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("echo", flag.ContinueOnError)
	listen := flags.String("listen", "", "be the server, on this `address`")
	dial := flags.String("dial", "", "be the client, of the server at this `address`")
	count := flags.Int("n", 10000, "messages that the client sends")
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch {
	case *count < 1:
		return errors.New("-n must be at least 1")
	case *listen != "":
		return serve(ctx, *listen, out)
	case *dial != "":
		return call(ctx, *dial, *count, out)
	}
	return program.WithServer(ctx, func(addr string) error { return call(ctx, addr, *count, out) })
}

// networkOf returns the network of an address.
func networkOf(addr string) string {
	if strings.Contains(addr, "/") || strings.HasPrefix(addr, "@") {
		return "unix"
	}
	return "tcp"
}
