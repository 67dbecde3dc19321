// Postgres is a database/sql client, by pgx, of a real PostgreSQL, which knows
// nothing of rnet: examples/proxy stands in front of it.
//
//	go run -C examples/programs ./postgres
//
// makes a database in a temporary directory, starts PostgreSQL and the proxy,
// each in a process of its own, moves money between accounts in transactions
// from many goroutines, checks that none is lost or made, and says which
// transport the client got. RNET_TRANSPORT=tcp in front of it shows the same
// over TCP. With a server of your own:
//
//	go run ./examples/proxy -from rnet:127.0.0.1:9000 -to tcp:127.0.0.1:5432
//	go run -C examples/programs ./postgres -url postgres://user:password@127.0.0.1:9000/database
//
// It uses a table ramjet_accounts, which it makes and drops.
package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"os"

	"github.com/seed-b9b531af/ramjet/examples/internal/program"
)

func main() { program.Main("postgres", run) }

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("postgres", flag.ContinueOnError)
	var c client
	flags.StringVar(&c.url, "url", "", "be the client of the database with this `URL`, whose address is the proxy's")
	flags.IntVar(&c.transfers, "n", 1000, "transactions that the client makes")
	flags.IntVar(&c.workers, "workers", 8, "goroutines that make them")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if c.transfers < 1 || c.workers < 1 {
		return errors.New("-n and -workers must be at least 1")
	}
	if c.url != "" {
		return c.run(ctx, out)
	}
	dir, err := os.MkdirTemp("", "postgres")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s, err := start(ctx, dir)
	if err != nil {
		return err
	}
	c.url = s.url()
	return errors.Join(c.run(ctx, out), s.stop())
}
