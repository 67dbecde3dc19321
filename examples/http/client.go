package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-b9b531af/ramjet/rnet"
)

// client makes requests of a server and checks the answers.
type client struct {
	url      string
	requests int // how many in all
	workers  int // how many at once
	maxBody  int // bytes
	http     *http.Client
}

// run makes the requests and prints how long they took.
func (c *client) run(ctx context.Context, out io.Writer) error {
	dialer := rnet.Dialer{} // was net.Dialer; nothing else changes
	transport := &http.Transport{DialContext: dialer.DialContext, MaxIdleConnsPerHost: c.workers}
	defer transport.CloseIdleConnections()
	c.http = &http.Client{Transport: transport}

	begin := time.Now()
	transferred, err := c.spread(ctx)
	if err != nil {
		return err
	}
	took := time.Since(begin)
	if u, err := url.Parse(c.url); err == nil {
		for _, decision := range rnet.Explain(u.Host) {
			fmt.Fprintln(out, "transport:", decision)
		}
	}
	fmt.Fprintf(out, "%d requests with %d bytes of checked bodies in %v, %.0f requests/s\n",
		c.requests, transferred, took.Round(time.Microsecond), float64(c.requests)/took.Seconds())
	return nil
}

// spread makes the requests from many goroutines and returns how many bytes
// went to and fro. The first error ends all.
func (c *client) spread(ctx context.Context) (transferred int64, err error) {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var next, total atomic.Int64
	var workers sync.WaitGroup
	for range c.workers {
		workers.Go(func() {
			for next.Add(1) <= int64(c.requests) && ctx.Err() == nil {
				n, err := c.request(ctx)
				if err != nil {
					fail(err)
				}
				total.Add(n)
			}
		})
	}
	workers.Wait() // ended by the requests, which end with ctx
	return total.Load(), context.Cause(ctx)
}

// request sends one body of random length and content and checks that it
// comes back.
func (c *client) request(ctx context.Context) (transferred int64, err error) {
	body := make([]byte, mathrand.N(c.maxBody+1))
	rand.Read(body)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"/echo", bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	echoed, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return 0, err
	case resp.StatusCode != http.StatusOK:
		return 0, fmt.Errorf("%s: %s", req.URL, resp.Status)
	case !bytes.Equal(echoed, body):
		return 0, errors.New("the body came back changed")
	}
	return int64(2 * len(body)), nil
}
