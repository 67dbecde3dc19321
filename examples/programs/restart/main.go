// Restart is a web server that replaces itself while it serves: a new process of it takes
// over the socket of the old one, by github.com/cloudflare/tableflip, and rnet's listeners
// hand the other transports over with it. No dial fails, none is left with TCP, and what is
// open goes on until its end.
//
//	go run -C examples/programs ./restart
//
// starts the server in a process of its own and a client that has it replaced ten times, with
// requests on connections that are kept, with new connections all the time, and with an answer
// that lasts longer than the process that gives it. RNET_TRANSPORT=tcp in front of it shows
// the same over TCP. The two ends can be started apart, too:
//
//	go run -C examples/programs ./restart -listen 127.0.0.1:9000
//	go run -C examples/programs ./restart -dial 127.0.0.1:9000
//
// A server that has a program of its own is replaced by a new one with kill -HUP.
package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"os"

	"github.com/seed-b9b531af/ramjet/examples/internal/program"
)

func main() { program.Main("restart", run) }

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("restart", flag.ContinueOnError)
	listen := flags.String("listen", "", "be the server, on this `address`")
	tied := flags.Bool("tied", false, "as the server, end when standard input does")
	var c client
	flags.StringVar(&c.addr, "dial", "", "be the client, of the server at this `address`")
	flags.IntVar(&c.restarts, "n", 10, "how often the client has the server replaced")
	flags.IntVar(&c.workers, "workers", 4, "goroutines that send requests, and as many that dial")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if c.restarts < 0 || c.workers < 1 {
		return errors.New("-n must be at least 0, -workers at least 1")
	}
	switch {
	case *listen != "":
		if *tied {
			ctx = untilEOF(ctx, os.Stdin)
		}
		return serve(ctx, *listen, out)
	case c.addr != "":
		return c.run(ctx, out)
	}
	server, err := start(ctx, "127.0.0.1:0")
	if err != nil {
		return err
	}
	c.addr = server.addr
	return errors.Join(c.run(ctx, out), server.stop())
}
