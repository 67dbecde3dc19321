package main

import (
	"context"
	"fmt"
	"net"

	"github.com/seed-b9b531af/ramjet/bench/harness"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
)

// grpcUnary are unary calls, all on one connection.
var grpcUnary = harness.Program{
	Name:  "grpc",
	Title: "gRPC, unary",
	Serve: func(ln net.Listener, fail func(error)) (func(), error) {
		s := grpc.NewServer()
		pb.RegisterTestServiceServer(s, grpcEcho{})
		go func() {
			if err := s.Serve(ln); err != nil { // ended by stop
				fail(fmt.Errorf("serve: %w", err))
			}
		}()
		return s.Stop, nil
	},
	Connect: func(dial harness.Dial, _ int) (harness.Client, error) {
		conn, err := grpc.NewClient("passthrough:///server",
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx) }),
			grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return nil, err
		}
		return grpcClient{conn, pb.NewTestServiceClient(conn)}, nil
	},
}

// grpcEcho answers each payload with the same.
type grpcEcho struct {
	pb.UnimplementedTestServiceServer
}

func (grpcEcho) UnaryCall(_ context.Context, in *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	return &pb.SimpleResponse{Payload: in.GetPayload()}, nil
}

type grpcClient struct {
	conn    *grpc.ClientConn
	service pb.TestServiceClient
}

func (c grpcClient) Call(_ int, message, answer []byte) error {
	got, err := c.service.UnaryCall(context.Background(), &pb.SimpleRequest{Payload: &pb.Payload{Body: message}})
	if err != nil {
		return err
	}
	return take(answer, got.GetPayload().GetBody())
}

func (c grpcClient) Close() error { return c.conn.Close() }

// take copies what was answered, if it is as long as it should be.
func take(answer, got []byte) error {
	if n := copy(answer, got); n != len(answer) || n != len(got) {
		return fmt.Errorf("the answer has %d bytes", len(got))
	}
	return nil
}
