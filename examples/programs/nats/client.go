package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	mathrand "math/rand/v2"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/seed-b9b531af/ramjet/rnet"
)

// client publishes, subscribes and requests, and checks what comes.
type client struct {
	addr     string
	messages int // how many to publish
	requests int // how many to make
	workers  int // how many at once
	maxBody  int // bytes

	dialer rnet.Dialer
}

// connect dials the server.
func (c *client) connect(options ...nats.Option) (*nats.Conn, error) {
	return nats.Connect("nats://"+c.addr, append(options, nats.SetCustomDialer(&c.dialer))...)
}

// run publishes and requests, and prints how long that took.
func (c *client) run(ctx context.Context, out io.Writer) error {
	near, err := c.connect()
	if err != nil {
		return err
	}
	defer near.Close()
	far, err := c.connect()
	if err != nil {
		return err
	}
	defer far.Close()
	for _, decision := range rnet.Explain(c.addr) {
		fmt.Fprintln(out, "transport:", decision)
	}

	begin := time.Now()
	if err := c.publish(ctx, near, far); err != nil {
		return err
	}
	published := time.Since(begin)

	if err := c.answer(far); err != nil {
		return err
	}
	begin = time.Now()
	if err := c.requestAll(ctx, near); err != nil {
		return err
	}
	requested := time.Since(begin)
	fmt.Fprintf(out, "%d messages published and received in %v, %.0f per second; %d requests in %v, %.0f per second\n",
		c.messages, published.Round(time.Microsecond), float64(c.messages)/published.Seconds(),
		c.requests, requested.Round(time.Microsecond), float64(c.requests)/requested.Seconds())
	fmt.Fprintf(out, "Messages go one way, as fast as they go; a request waits for its answer, %d at once. Each is of up to %d bytes, and checked.\n", c.workers, c.maxBody)
	return nil
}

// publish sends all messages from one connection to the other, and checks that
// each comes once and in order.
func (c *client) publish(ctx context.Context, from, to *nats.Conn) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	want := uint64(0) // used by the subscription's goroutine
	all := make(chan struct{})
	sub, err := to.Subscribe("ramjet.numbers", func(m *nats.Msg) {
		switch number, err := open(m.Data); {
		case err != nil:
			fail(err)
		case number != want:
			fail(fmt.Errorf("message %d came instead of %d", number, want))
		default:
			if want++; want == uint64(c.messages) {
				close(all)
			}
		}
	})
	if err != nil {
		return err
	}
	defer sub.Unsubscribe()
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return err
	}
	if err := to.Flush(); err != nil { // the server knows of the subscription
		return err
	}
	for i := range uint64(c.messages) {
		if err := from.Publish("ramjet.numbers", c.seal(i)); err != nil {
			return err
		}
	}
	select {
	case <-all: // ended by the last message
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// seal makes a message of a number, random bytes and a checksum.
func (c *client) seal(number uint64) []byte {
	message := make([]byte, 12+mathrand.N(c.maxBody+1))
	binary.LittleEndian.PutUint64(message[4:], number)
	rand.Read(message[12:])
	binary.LittleEndian.PutUint32(message, crc32.ChecksumIEEE(message[4:]))
	return message
}

// open returns the number of a message.
func open(message []byte) (number uint64, err error) {
	if len(message) < 12 || crc32.ChecksumIEEE(message[4:]) != binary.LittleEndian.Uint32(message) {
		return 0, errors.New("a message came changed")
	}
	return binary.LittleEndian.Uint64(message[4:]), nil
}

// answer answers each request with its own content.
func (c *client) answer(conn *nats.Conn) error {
	if _, err := conn.Subscribe("ramjet.echo", func(m *nats.Msg) { _ = m.Respond(m.Data) }); err != nil {
		return err
	}
	return conn.Flush()
}

// requestAll makes all requests, from many goroutines.
func (c *client) requestAll(ctx context.Context, conn *nats.Conn) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var workers sync.WaitGroup
	for i := range c.workers {
		workers.Go(func() {
			for range (c.requests + i) / c.workers {
				if err := c.request(ctx, conn); err != nil {
					fail(err)
					return
				}
			}
		})
	}
	workers.Wait() // ended by the requests, which end with ctx
	return context.Cause(ctx)
}

// request makes one request and checks the answer.
func (c *client) request(ctx context.Context, conn *nats.Conn) error {
	sent := c.seal(0)
	got, err := conn.RequestWithContext(ctx, "ramjet.echo", sent)
	if err == nil && !bytes.Equal(got.Data, sent) {
		return errors.New("the answer differs from the request")
	}
	return err
}
