package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/seed-b9b531af/ramjet/rnet"
)

// client makes rounds of commands and checks the answers.
type client struct {
	addr     string
	rounds   int // how many in all
	workers  int // how many at once
	maxValue int // bytes

	dialer rnet.Dialer
}

// connect returns go-redis's client, which dials when it needs a connection.
func (c *client) connect(opts redis.Options) *redis.Client {
	opts.Addr = c.addr
	opts.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		return c.dialer.DialContext(ctx, network, addr)
	}
	return redis.NewClient(&opts)
}

// run makes the rounds and prints how long they took.
func (c *client) run(ctx context.Context, out io.Writer) error {
	db := c.connect(redis.Options{})
	defer db.Close()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	begin := time.Now()
	var workers sync.WaitGroup
	for i := range c.workers {
		workers.Go(func() {
			w := worker{db: db, maxValue: c.maxValue, prefix: fmt.Sprintf("ramjet:%s:%d:", rand.Text(), i)}
			defer w.forget(context.WithoutCancel(ctx)) // also after an interrupt
			for range (c.rounds + i) / c.workers {
				if err := w.round(ctx); err != nil {
					fail(err)
					return
				}
			}
		})
	}
	workers.Wait() // ended by the rounds, which end with ctx
	if err := context.Cause(ctx); err != nil {
		return err
	}
	took := time.Since(begin)
	for _, decision := range rnet.Explain(c.addr) {
		fmt.Fprintln(out, "transport:", decision)
	}
	fmt.Fprintf(out, "%d rounds in %v, %.0f per second\n",
		c.rounds, took.Round(time.Microsecond), float64(c.rounds)/took.Seconds())
	fmt.Fprintf(out, "By %d goroutines; a round is 3 commands and a pipeline of 10, through the proxy beside the redis-server.\n", c.workers)
	return nil
}

// worker has keys of its own, and knows what they must be.
type worker struct {
	db       *redis.Client
	prefix   string
	maxValue int
	counted  int64 // what the counter is at least
}

// round sets a value and gets it back, counts, and does both in a pipeline.
func (w *worker) round(ctx context.Context) error {
	value := w.value()
	if err := w.db.Set(ctx, w.prefix+"value", value, 0).Err(); err != nil {
		return err
	}
	if err := expect(w.db.Get(ctx, w.prefix+"value"), value); err != nil {
		return err
	}
	if err := w.count(w.db.Incr(ctx, w.prefix+"counter")); err != nil {
		return err
	}

	pipe := w.db.Pipeline()
	var values [3]string
	var gets [3]*redis.StringCmd
	var counts [4]*redis.IntCmd
	for i := range values {
		values[i] = w.value()
		key := fmt.Sprint(w.prefix, "value", i)
		pipe.Set(ctx, key, values[i], 0)
		gets[i] = pipe.Get(ctx, key)
	}
	for i := range counts {
		counts[i] = pipe.Incr(ctx, w.prefix+"counter")
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return err
	}
	for i := range values {
		if err := expect(gets[i], values[i]); err != nil {
			return err
		}
	}
	for i := range counts {
		if err := w.count(counts[i]); err != nil {
			return err
		}
	}
	return nil
}

func (w *worker) value() string {
	value := make([]byte, mathrand.N(w.maxValue+1))
	rand.Read(value)
	return string(value)
}

func expect(got *redis.StringCmd, want string) error {
	switch value, err := got.Result(); {
	case err != nil:
		return err
	case value != want:
		return fmt.Errorf("%s: the value came back changed", got)
	}
	return nil
}

// count checks that what was counted before was not forgotten. What failed may
// have been counted or not.
func (w *worker) count(got *redis.IntCmd) error {
	n, err := got.Result()
	switch {
	case err != nil:
		return err
	case n <= w.counted:
		return fmt.Errorf("counted to %d after %d", n, w.counted)
	}
	w.counted = n
	return nil
}

// forget deletes the worker's keys.
func (w *worker) forget(ctx context.Context) {
	keys := []string{w.prefix + "value", w.prefix + "counter"}
	for i := range 3 {
		keys = append(keys, fmt.Sprint(w.prefix, "value", i))
	}
	w.db.Del(ctx, keys...)
}
