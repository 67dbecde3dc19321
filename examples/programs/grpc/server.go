package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/seed-b9b531af/ramjet/examples/internal/child"
	"github.com/seed-b9b531af/ramjet/rnet"
	"google.golang.org/grpc"
	pb "google.golang.org/grpc/interop/grpc_testing"
)

// drain is how long calls under way may take when the server shuts down.
const drain = 2 * time.Second

// serve serves the service on addr until ctx ends, and returns when the last
// call is answered. Calls that last longer than drain, as streams may, it ends.
func serve(ctx context.Context, addr string, service pb.TestServiceServer, out io.Writer) error {
	ln, err := rnet.Listen("tcp", addr) // was net.Listen; nothing else changes
	if err != nil {
		return err
	}
	fmt.Fprintln(out, child.Announcement+ln.Addr().String())
	server := grpc.NewServer()
	pb.RegisterTestServiceServer(server, service)
	stop := context.AfterFunc(ctx, func() {
		defer time.AfterFunc(drain, server.Stop).Stop()
		server.GracefulStop() // ended by the last call, or by Stop
	})
	defer stop()
	return server.Serve(ln) // ended by GracefulStop, or by an error of the listener
}

// echo answers each payload with the same.
type echo struct {
	pb.UnimplementedTestServiceServer
}

func (*echo) UnaryCall(_ context.Context, in *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	return &pb.SimpleResponse{Payload: in.GetPayload()}, nil
}

func (*echo) FullDuplexCall(stream pb.TestService_FullDuplexCallServer) error {
	for {
		in, err := stream.Recv() // ended by the client
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := stream.Send(&pb.StreamingOutputCallResponse{Payload: in.GetPayload()}); err != nil {
			return err
		}
	}
}
