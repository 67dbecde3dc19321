package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"time"

	"github.com/seed-b9b531af/ramjet/rnet"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	pb "google.golang.org/grpc/interop/grpc_testing"
)

// makeCalls is a client process: for each line of its input it makes calls, all on one
// connection, and says what they went over.
func makeCalls(address string) error {
	c := client{addr: address, calls: 60, workers: 4, maxBody: 64 << 10}
	c.dialer.HeadStart = time.Minute // however busy the machine is
	quick := backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, MaxDelay: 200 * time.Millisecond}
	c.options = []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{Backoff: quick, MinConnectTimeout: time.Minute})}
	conn, err := c.connect()
	if err != nil {
		return err
	}
	defer conn.Close()
	service := pb.NewTestServiceClient(conn)
	call := func(ctx context.Context) error {
		if err := c.spread(ctx, func(ctx context.Context, n int) error { return c.stream(ctx, service, n) }); err != nil {
			return err
		}
		return c.unary(ctx, service)
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); { // ended by the test
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		err := call(ctx)
		for err != nil && ctx.Err() == nil { // the server has ended meanwhile, and is started again
			time.Sleep(20 * time.Millisecond)
			err = call(ctx)
		}
		cancel()
		if err != nil {
			return err
		}
		told := rnet.Explain(address)
		fmt.Println(told[len(told)-1].Transport)
	}
	return nil
}
