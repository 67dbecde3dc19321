package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-b9b531af/ramjet/rnet"
)

// client sends requests to a server, has it replaced meanwhile, and counts what goes wrong.
type client struct {
	addr      string
	transport rnet.Transport // empty: any, as RNET_TRANSPORT says
	restarts  int
	workers   int

	requests, dials, overTCP atomic.Int64

	mu     sync.Mutex
	failed []error // guarded by mu
}

// headStart is how long a dial waits for a server that is there: on a busy machine TCP would be
// as slow. Where nobody listens a dial does not wait.
const headStart = 10 * time.Second

// mostFailures is how many are shown.
const mostFailures = 5

func (c *client) run(ctx context.Context, out io.Writer) error {
	working, stop := context.WithCancel(ctx)
	defer stop()
	var work sync.WaitGroup
	kept := &http.Client{Transport: &http.Transport{
		MaxIdleConnsPerHost: c.workers,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return c.dial(ctx, rnet.Dialer{})
		},
	}}
	defer kept.CloseIdleConnections()
	for i := range c.workers {
		work.Go(func() { c.repeat(working, "request", func() error { return c.request(ctx, kept) }) })
		// Some share the sessions of others, and some have each their own.
		d := rnet.Dialer{Dedicated: i%2 == 0}
		work.Go(func() { c.repeat(working, "new connection", func() error { return c.connect(ctx, d) }) })
	}
	for n := range c.restarts {
		if err := c.restart(ctx); err != nil {
			c.fail(fmt.Errorf("restart %d: %w", n+1, err))
			break
		}
	}
	stop()
	work.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx) // which is why whatever else failed
	}
	fmt.Fprintf(out, "%d restarts, %d requests on kept connections, %d dials, %d of them over TCP, %d failures\n",
		c.restarts, c.requests.Load(), c.dials.Load(), c.overTCP.Load(), len(c.failed))
	if c.overTCP.Load() > 0 && cmp.Or(c.transport, rnet.Transport(os.Getenv("RNET_TRANSPORT"))) != rnet.TCP {
		explanation := rnet.Explain(c.addr)
		c.fail(fmt.Errorf("%d dials went over TCP: %v", c.overTCP.Load(), explanation))
	}
	return errors.Join(c.failed[:min(len(c.failed), mostFailures)]...)
}

// repeat does something until ctx ends.
func (c *client) repeat(ctx context.Context, what string, do func() error) {
	for ctx.Err() == nil {
		if err := do(); err != nil && ctx.Err() == nil {
			c.fail(fmt.Errorf("%s: %w", what, err))
		}
		time.Sleep(time.Millisecond) // the server wants to run as well
	}
}

func (c *client) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed = append(c.failed, err)
}

// dial connects to the server, and counts over what.
func (c *client) dial(ctx context.Context, d rnet.Dialer) (net.Conn, error) {
	d.Transport, d.HeadStart = c.transport, headStart
	conn, err := d.DialContext(ctx, "tcp", c.addr)
	if err != nil {
		return nil, err
	}
	c.dials.Add(1)
	if _, ok := conn.(*rnet.Conn); !ok {
		c.overTCP.Add(1)
	}
	return conn, nil
}

// request asks for a page, on a connection that was used before if there is one.
func (c *client) request(ctx context.Context, kept *http.Client) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.addr, nil)
	if err != nil {
		return err
	}
	answer, err := kept.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	_, err = io.Copy(io.Discard, answer.Body)
	c.requests.Add(1)
	return err
}

// connect asks for a page on a connection of its own, which nobody tries again.
func (c *client) connect(ctx context.Context, d rnet.Dialer) error {
	_, err := c.process(ctx, d)
	return err
}

// process asks which process serves a new connection.
func (c *client) process(ctx context.Context, d rnet.Dialer) (string, error) {
	conn, err := c.dial(ctx, d)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if _, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", c.addr); err != nil {
		return "", err
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(answer.Body)
	return strings.TrimSpace(string(body)), err
}

// ticksAfter is how many lines of a long answer the client reads after the process that sends
// them was replaced.
const ticksAfter = 10

// restart has the server replaced, while it sends an answer that does not end, and waits
// until the new process serves.
func (c *client) restart(ctx context.Context) error {
	var d rnet.Dialer
	conn, err := c.dial(ctx, d)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if _, err := fmt.Fprintf(conn, "GET /ticks HTTP/1.1\r\nHost: %s\r\n\r\n", c.addr); err != nil {
		return err
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err
	}
	lines := bufio.NewReader(answer.Body)
	old, err := lines.ReadString('\n')
	if err != nil {
		return err
	}
	old = strings.TrimSpace(old)
	if err := c.ask(ctx); err != nil {
		return err
	}
	for {
		now, err := c.process(ctx, d)
		if err != nil {
			return err
		}
		if now != old {
			break
		}
		time.Sleep(time.Millisecond) // until the old one knows of it
	}
	for range ticksAfter {
		line, err := lines.ReadString('\n')
		if err != nil {
			return fmt.Errorf("an answer that was begun before: %w", err)
		}
		if strings.TrimSpace(line) != old {
			return fmt.Errorf("an answer that process %s has begun goes on with %q", old, line)
		}
	}
	return nil
}

// ask asks for the restart. A process does not start another one before the one that it has
// replaced has ended.
func (c *client) ask(ctx context.Context) error {
	pool := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		return c.dial(ctx, rnet.Dialer{})
	}}
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+c.addr+"/restart", nil)
		if err != nil {
			return err
		}
		answer, err := pool.RoundTrip(request)
		if err != nil {
			return err
		}
		why, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		switch {
		case err != nil:
			return err
		case answer.StatusCode == http.StatusOK:
			return nil
		case answer.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(why), "parent hasn't exited"):
			return fmt.Errorf("%s: %s", answer.Status, why)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
