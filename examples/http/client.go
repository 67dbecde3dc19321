package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-b9b531af/ramjet/rnet"
)

// client makes requests of a server and checks the answers.
type client struct {
	url      string
	ca       string // file of the certificates to trust, empty for the system's
	http2    bool
	requests int // how many in all
	workers  int // how many at once
	maxBody  int // bytes

	dialer rnet.Dialer // was net.Dialer; nothing else changes
	http   *http.Client
}

// connect makes the HTTP client. Nothing is dialed yet.
func (c *client) connect() error {
	transport := &http.Transport{
		DialContext:         c.dialer.DialContext,
		MaxIdleConnsPerHost: c.workers,
		Protocols:           new(http.Protocols),
	}
	transport.Protocols.SetHTTP1(!c.http2)
	transport.Protocols.SetHTTP2(c.http2)
	transport.Protocols.SetUnencryptedHTTP2(c.http2)
	if c.ca != "" {
		pem, err := os.ReadFile(c.ca)
		if err != nil {
			return err
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(pem) {
			return fmt.Errorf("no certificate in %s", c.ca)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: roots}
	}
	c.http = &http.Client{Transport: transport}
	return nil
}

// run makes the requests and prints how long they took.
func (c *client) run(ctx context.Context, out io.Writer) error {
	if err := c.connect(); err != nil {
		return err
	}
	defer c.http.CloseIdleConnections()
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
	fmt.Fprintf(out, "%d requests by %s with %d bytes of checked bodies in %v, %.0f requests/s\n",
		c.requests, c.protocol(), transferred, took.Round(time.Microsecond), float64(c.requests)/took.Seconds())
	fmt.Fprintf(out, "By %d goroutines at once, with bodies of up to %d bytes, which are made and checked in the same time.\n", c.workers, c.maxBody)
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
	case resp.Proto != c.protocol():
		return 0, fmt.Errorf("%s: answered by %s", req.URL, resp.Proto)
	case resp.StatusCode != http.StatusOK:
		return 0, fmt.Errorf("%s: %s", req.URL, resp.Status)
	case !bytes.Equal(echoed, body):
		return 0, errors.New("the body came back changed")
	}
	return int64(2 * len(body)), nil
}

// protocol is the one that the client insists on.
func (c *client) protocol() string {
	if c.http2 {
		return "HTTP/2.0"
	}
	return "HTTP/1.1"
}
