// Package program is what the examples have in common: how one begins and ends, how a
// server accepts, and how a client gets one.
package program

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/seed-b9b531af/ramjet/examples/internal/child"
)

// Main runs an example with the arguments of the process. An interrupt ends ctx, and so does SIGTERM, by which
// systemd and container runtimes end programs.
func Main(name string, run func(ctx context.Context, args []string, out io.Writer) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

// Accept calls serve for each connection that comes to ln, on a goroutine of its own. When
// ctx ends it closes ln, and returns when the last serve has returned.
func Accept(ctx context.Context, ln net.Listener, serve func(net.Conn)) {
	stop := context.AfterFunc(ctx, func() { ln.Close() })
	defer stop()
	var conns sync.WaitGroup
	defer conns.Wait() // ended by serve
	for {
		conn, err := ln.Accept() // ended by a client, or by ctx
		switch {
		case err == nil:
			conns.Go(func() { serve(conn) })
		case errors.Is(err, net.ErrClosed):
			return
		default: // out of descriptors, perhaps
			fmt.Fprintln(os.Stderr, err)
			time.Sleep(time.Second)
		}
	}
}

// WithServer runs a client against a server in a process of its own, which is this program
// with -listen and args.
func WithServer(ctx context.Context, client func(addr string) error, args ...string) error {
	server, err := child.Start(ctx, append([]string{"-listen", "127.0.0.1:0"}, args...)...)
	if err != nil {
		return err
	}
	err = errors.Join(client(server.Addr), server.Stop())
	if ctx.Err() != nil {
		return context.Cause(ctx) // which is why whatever else failed
	}
	return err
}
