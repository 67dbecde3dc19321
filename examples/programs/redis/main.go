// Redis is a go-redis client of a real redis-server, which knows nothing of
// rnet: examples/proxy stands in front of it.
//
//	go run -C examples/programs ./redis
//
// starts redis-server and the proxy, each in a process of its own, sets, gets
// and counts from many goroutines, one command at a time and in pipelines,
// checks every answer, and says which transport the client got.
// RNET_TRANSPORT=tcp in front of it shows the same over TCP. With a server of
// your own:
//
//	go run ./examples/proxy -from rnet:127.0.0.1:9000 -to tcp:127.0.0.1:6379
//	go run -C examples/programs ./redis -dial 127.0.0.1:9000
//
// It writes and deletes keys that begin with "ramjet:".
package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"os"

	"github.com/seed-b9b531af/ramjet/examples/internal/program"
)

func main() { program.Main("redis", run) }

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("redis", flag.ContinueOnError)
	var c client
	flags.StringVar(&c.addr, "dial", "", "be the client of the redis-server behind the proxy at this `address`")
	flags.IntVar(&c.rounds, "n", 2000, "rounds that the client makes, of 3 commands and a pipeline of 10")
	flags.IntVar(&c.workers, "workers", 8, "goroutines that make them")
	flags.IntVar(&c.maxValue, "value", 4<<10, "longest value in bytes")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if c.rounds < 1 || c.workers < 1 || c.maxValue < 0 {
		return errors.New("-n and -workers must be at least 1, -value at least 0")
	}
	if c.addr != "" {
		return c.run(ctx, out)
	}
	dir, err := os.MkdirTemp("", "redis")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s, err := start(ctx, dir)
	if err != nil {
		return err
	}
	c.addr = s.proxy.Addr
	return errors.Join(c.run(ctx, out), s.stop())
}
