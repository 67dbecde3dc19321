package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net/rpc"
	"sync"
	"time"

	"github.com/seed-b9b531af/ramjet/rnet"
)

// client makes calls to a server and checks the answers.
type client struct {
	addr    string
	calls   int // how many in all
	workers int // how many at once
	maxBody int // bytes

	dialer rnet.Dialer // was net.Dialer
}

// connect dials the server.
func (c *client) connect(ctx context.Context) (*rpc.Client, error) {
	conn, err := c.dialer.DialContext(ctx, "tcp", c.addr)
	if err != nil {
		return nil, err
	}
	return rpc.NewClient(conn), nil
}

// run makes the calls and prints how long they took.
func (c *client) run(ctx context.Context, out io.Writer) error {
	server, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer server.Close()
	for _, decision := range rnet.Explain(c.addr) {
		fmt.Fprintln(out, "transport:", decision)
	}

	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	stop := context.AfterFunc(ctx, func() { server.Close() }) // which ends the write of an argument, too
	defer stop()
	begin := time.Now()
	var workers sync.WaitGroup
	for i := range c.workers {
		workers.Go(func() {
			for range (c.calls + i) / c.workers {
				if err := c.call(ctx, server); err != nil {
					fail(err)
					return
				}
			}
		})
	}
	workers.Wait() // ended by the calls, which end with ctx
	if err := context.Cause(ctx); err != nil {
		return err
	}
	took := time.Since(begin)
	fmt.Fprintf(out, "%d calls in %v, %.0f per second\n",
		c.calls, took.Round(time.Microsecond), float64(c.calls)/took.Seconds())
	fmt.Fprintf(out, "By %d goroutines on one connection, with arguments of up to %d bytes, which come back and are checked.\n", c.workers, c.maxBody)
	return nil
}

// call makes one call and checks that its argument comes back.
func (c *client) call(ctx context.Context, server *rpc.Client) error {
	sent := make([]byte, 1+mathrand.N(c.maxBody))
	rand.Read(sent)
	var got []byte
	select {
	case call := <-server.Go("Echo.Bytes", sent, &got, nil).Done:
		// ended by the answer, or the connection's end
		if call.Error != nil {
			return call.Error
		}
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if !bytes.Equal(got, sent) {
		return errors.New("the answer differs from the argument")
	}
	return nil
}
