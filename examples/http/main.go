// Http is a net/http server and client that talk over rnet.
//
//	go run ./examples/http
//
// starts both, the server in a process of its own, sends requests from many
// goroutines, checks every body, and says which transport they got.
// RNET_TRANSPORT=tcp in front of it shows the same over TCP. The two ends can
// be started apart, and the server answers to curl as well:
//
//	go run ./examples/http -listen 127.0.0.1:8080
//	go run ./examples/http -url http://127.0.0.1:8080
//	curl -d hello http://127.0.0.1:8080/echo
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
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "http:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("http", flag.ContinueOnError)
	listen := flags.String("listen", "", "be the server, on this `address`")
	var c client
	flags.StringVar(&c.url, "url", "", "be the client, of the server at this `URL`")
	flags.IntVar(&c.requests, "n", 2000, "requests that the client makes")
	flags.IntVar(&c.workers, "workers", 16, "goroutines that make them")
	flags.IntVar(&c.maxBody, "body", 64<<10, "longest body in bytes")
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch {
	case *listen != "":
		return serve(ctx, *listen, out)
	case c.url != "":
		return c.run(ctx, out)
	}
	server, err := child.Start(ctx, "-listen", "127.0.0.1:0")
	if err != nil {
		return err
	}
	c.url = "http://" + server.Addr
	return errors.Join(c.run(ctx, out), server.Stop())
}
