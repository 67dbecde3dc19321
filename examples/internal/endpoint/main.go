package endpoint

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"

	"github.com/seed-b9b531af/ramjet/examples/internal/program"
)

// Program is an example: a server that serves peers that come over TCP to tell
// where they are, and a client of it.
type Program struct {
	Name   string
	Serve  func(e *Endpoint, peer net.Conn) error
	Client func(e *Endpoint, server net.Conn, count int, out io.Writer) error
}

// Main runs the program with the arguments of the process.
func (p *Program) Main() { program.Main(p.Name, p.Run) }

// Run runs it with args.
func (p *Program) Run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet(p.Name, flag.ContinueOnError)
	listen := flags.String("listen", "", "be the server, on this TCP `address`")
	dial := flags.String("dial", "", "be the client, of the server at this TCP `address`")
	device := flags.String("device", "soft0", "RDMA `device`")
	count := flags.Int("n", 1000, "`count` of operations of the client")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *count < 1 {
		return fmt.Errorf("-n is %d, and has to be 1 or more", *count)
	}
	e, err := Open(*device)
	if err != nil {
		return err
	}
	defer e.Close()
	defer context.AfterFunc(ctx, e.Interrupt)()
	if *listen != "" {
		return Serve(ctx, *listen, out, func(peer net.Conn) error { return p.Serve(e, peer) })
	}
	return Both(ctx, *device, *dial, func(addr string) error {
		server, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err != nil {
			return err
		}
		defer server.Close()
		defer context.AfterFunc(ctx, func() { server.Close() })()
		err = p.Client(e, server, *count, out)
		if ctx.Err() != nil {
			err = context.Cause(ctx) // which is why it failed
		}
		return err
	})
}
