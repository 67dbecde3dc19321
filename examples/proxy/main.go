// Proxy carries connections from one address to another, plain TCP on one
// side and rnet on the other, so that a program that cannot be changed is
// served too.
//
//	go run ./examples/proxy
//
// shows how: a TCP client talks to a TCP server through two proxies, each in
// its own process, with rnet between the two. By hand, in front of a server
// that speaks TCP on port 5432, and in front of its clients:
//
//	go run ./examples/proxy -from rnet:127.0.0.1:9000 -to tcp:127.0.0.1:5432
//	go run ./examples/proxy -from tcp:127.0.0.1:5433 -to rnet:127.0.0.1:9000
//
// The first alone lets rnet clients reach the server, the second alone lets
// TCP clients reach an rnet server.
package main

import (
	"context"
	"errors"
	"flag"
	"io"

	"github.com/seed-b9b531af/ramjet/examples/internal/program"
)

func main() { program.Main("proxy", run) }

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("proxy", flag.ContinueOnError)
	var p proxy
	flags.TextVar(&p.from, "from", side{}, "where connections come from: tcp:`ADDRESS` or rnet:ADDRESS")
	flags.TextVar(&p.to, "to", side{}, "where they go to: tcp:`ADDRESS` or rnet:ADDRESS")
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch {
	case p.from == side{} && p.to == side{}:
		return demonstrate(ctx, out)
	case p.from == side{} || p.to == side{}:
		return errors.New("-from and -to belong together")
	}
	ln, err := p.listen(out)
	if err != nil {
		return err
	}
	p.serve(ctx, ln)
	return nil
}
