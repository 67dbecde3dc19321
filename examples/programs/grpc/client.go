package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/seed-b9b531af/ramjet/rnet"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
)

// client makes calls to a server and checks the answers.
type client struct {
	addr    string
	calls   int // how many of each kind
	workers int // how many at once
	maxBody int // bytes

	dialer  rnet.Dialer
	options []grpc.DialOption
}

// connect returns a connection that dials when the first call is made.
func (c *client) connect() (*grpc.ClientConn, error) {
	dial := func(ctx context.Context, addr string) (net.Conn, error) {
		return c.dialer.DialContext(ctx, "tcp", addr)
	}
	return grpc.NewClient("passthrough:///"+c.addr, append(c.options,
		grpc.WithContextDialer(dial), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
}

// run makes the calls and prints how long they took.
func (c *client) run(ctx context.Context, out io.Writer) error {
	conn, err := c.connect()
	if err != nil {
		return err
	}
	defer conn.Close()
	service := pb.NewTestServiceClient(conn)

	begin := time.Now()
	if err := c.spread(ctx, func(ctx context.Context, n int) error {
		for range n {
			if err := c.unary(ctx, service); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	unary := time.Since(begin)

	begin = time.Now()
	if err := c.spread(ctx, func(ctx context.Context, n int) error { return c.stream(ctx, service, n) }); err != nil {
		return err
	}
	streamed := time.Since(begin)

	for _, decision := range rnet.Explain(c.addr) {
		fmt.Fprintln(out, "transport:", decision)
	}
	fmt.Fprintf(out, "%d unary calls in %v, %.0f per second; %d messages echoed on %d streams in %v, %.0f per second\n",
		c.calls, unary.Round(time.Microsecond), float64(c.calls)/unary.Seconds(),
		c.calls, c.workers, streamed.Round(time.Microsecond), float64(c.calls)/streamed.Seconds())
	fmt.Fprintf(out, "By %d goroutines on one connection, with payloads of up to %d bytes, which come back and are checked.\n", c.workers, c.maxBody)
	return nil
}

// spread divides the calls among the workers. The first error ends all.
func (c *client) spread(ctx context.Context, work func(ctx context.Context, n int) error) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var workers sync.WaitGroup
	for i := range c.workers {
		share := (c.calls + i) / c.workers
		workers.Go(func() {
			if err := work(ctx, share); err != nil {
				fail(err)
			}
		})
	}
	workers.Wait() // ended by the calls, which end with ctx
	return context.Cause(ctx)
}

// payload returns bytes of random length and content.
func (c *client) payload() *pb.Payload {
	body := make([]byte, mathrand.N(c.maxBody+1))
	rand.Read(body)
	return &pb.Payload{Body: body}
}

var errChanged = errors.New("the payload came back changed")

// unary makes one call and checks that the payload comes back.
func (c *client) unary(ctx context.Context, service pb.TestServiceClient) error {
	sent := c.payload()
	got, err := service.UnaryCall(ctx, &pb.SimpleRequest{Payload: sent})
	switch {
	case err != nil:
		return err
	case !bytes.Equal(got.GetPayload().GetBody(), sent.Body):
		return errChanged
	}
	return nil
}

// stream sends n messages on a stream, without waiting for answers, and checks
// that all come back in order.
func (c *client) stream(ctx context.Context, service pb.TestServiceClient, n int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream, and so the sender
	stream, err := service.FullDuplexCall(ctx)
	if err != nil {
		return err
	}
	sent := make(chan *pb.Payload, 64)
	var sender sync.WaitGroup
	defer sender.Wait() // ended by the last message, an error of the stream, or cancel
	defer cancel()
	sender.Go(func() {
		defer close(sent)
		for range n {
			p := c.payload()
			if stream.Send(&pb.StreamingOutputCallRequest{Payload: p}) != nil {
				return // Recv says why
			}
			select {
			case sent <- p: // ended by the receiver's progress
			case <-ctx.Done():
				return
			}
		}
		stream.CloseSend()
	})
	for range n {
		got, err := stream.Recv()
		if err != nil {
			return err
		}
		want := <-sent // ended by the sender, which has sent it
		if !bytes.Equal(got.GetPayload().GetBody(), want.GetBody()) {
			return errChanged
		}
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("the stream did not end after the last message: %w", err)
	}
	return nil
}
