package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/seed-b9b531af/ramjet/examples/internal/child"
	"github.com/seed-b9b531af/ramjet/examples/internal/killtest"
	"github.com/seed-b9b531af/ramjet/examples/internal/programtest"
	"github.com/seed-b9b531af/ramjet/internal/race"
	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/interop"
	pb "google.golang.org/grpc/interop/grpc_testing"
)

// TestMain lets the test program be the server process that the client
// starts.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "tied" {
		os.Args = append(os.Args[:1], os.Args[2:]...)
		go func() {
			io.Copy(io.Discard, os.Stdin) // ended by the test, or its death
			os.Exit(0)
		}()
	}
	switch {
	case len(os.Args) > 1 && os.Args[1] == "-listen":
		main()
		return
	case len(os.Args) > 2 && os.Args[1] == "call":
		if err := makeCalls(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	case len(os.Args) > 1 && os.Args[1] == "interop":
		if err := serve(context.Background(), "127.0.0.1:0", interop.NewTestServer(), os.Stdout); err != nil {
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func TestTwoProcessesMakeUnaryAndStreamingCalls(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"-n", "300"}, &out))
	require.Contains(t, out.String(), "300 unary calls in")
	require.Contains(t, out.String(), "300 messages echoed on 16 streams")
	killtest.RequireTransport(t, out.String(), "transport: %s", rnet.Auto)
}

func TestPayloadsLargerThanAnyWindowComeBack(t *testing.T) {
	require.NoError(t, run(t.Context(), []string{"-n", "12", "-workers", "4", "-body", "2000000"}, io.Discard))
}

// interoperation are the cases of gRPC's interoperability tests that need no
// cloud. A case that fails ends the test program.
var interoperation = map[string]func(context.Context, pb.TestServiceClient){
	"empty unary":          func(ctx context.Context, c pb.TestServiceClient) { interop.DoEmptyUnaryCall(ctx, c) },
	"large unary":          func(ctx context.Context, c pb.TestServiceClient) { interop.DoLargeUnaryCall(ctx, c) },
	"client streaming":     func(ctx context.Context, c pb.TestServiceClient) { interop.DoClientStreaming(ctx, c) },
	"server streaming":     func(ctx context.Context, c pb.TestServiceClient) { interop.DoServerStreaming(ctx, c) },
	"ping pong":            func(ctx context.Context, c pb.TestServiceClient) { interop.DoPingPong(ctx, c) },
	"empty stream":         func(ctx context.Context, c pb.TestServiceClient) { interop.DoEmptyStream(ctx, c) },
	"timeout":              func(ctx context.Context, c pb.TestServiceClient) { interop.DoTimeoutOnSleepingServer(ctx, c) },
	"cancel after begin":   func(ctx context.Context, c pb.TestServiceClient) { interop.DoCancelAfterBegin(ctx, c) },
	"cancel after answer":  func(ctx context.Context, c pb.TestServiceClient) { interop.DoCancelAfterFirstResponse(ctx, c) },
	"metadata":             func(ctx context.Context, c pb.TestServiceClient) { interop.DoCustomMetadata(ctx, c) },
	"status code":          func(ctx context.Context, c pb.TestServiceClient) { interop.DoStatusCodeAndMessage(ctx, c) },
	"special status":       func(ctx context.Context, c pb.TestServiceClient) { interop.DoSpecialStatusMessage(ctx, c) },
	"unimplemented method": nil, // takes the connection
}

func TestTheInteroperabilityTestsOfGRPCPass(t *testing.T) {
	server, err := child.Start(t.Context(), "interop")
	require.NoError(t, err)
	defer server.Kill()
	c := client{addr: server.Addr}
	conn, err := c.connect()
	require.NoError(t, err)
	defer conn.Close()
	service := pb.NewTestServiceClient(conn)
	for name, do := range interoperation {
		t.Run(name, func(t *testing.T) {
			if do == nil {
				interop.DoUnimplementedMethod(t.Context(), conn)
				return
			}
			do(t.Context(), service)
		})
	}
}

func TestAnOrdinaryClientIsServedByTheSameListener(t *testing.T) {
	killtest.NeedTCP(t)
	server, err := child.Start(t.Context(), "-listen", "127.0.0.1:0")
	require.NoError(t, err)
	c := client{addr: server.Addr, calls: 20, workers: 2, maxBody: 1000}
	c.dialer.Choose = func(context.Context, string, string) rnet.Transport { return rnet.TCP }
	require.NoError(t, c.run(t.Context(), io.Discard))
	require.NoError(t, server.Stop())
}

func TestTheServerEndsAlthoughAStreamStays(t *testing.T) {
	if race.Enabled {
		t.Skip("grpc's own GracefulStop and its handling of a PING race (v1.85.0, http2Server.Drain and handlePing)")
	}
	server, err := child.Start(t.Context(), "-listen", "127.0.0.1:0")
	require.NoError(t, err)
	c := client{addr: server.Addr}
	conn, err := c.connect()
	require.NoError(t, err)
	defer conn.Close()
	stream, err := pb.NewTestServiceClient(conn).FullDuplexCall(t.Context())
	require.NoError(t, err)
	require.NoError(t, stream.Send(&pb.StreamingOutputCallRequest{}))
	_, err = stream.Recv() // the server has it
	require.NoError(t, err)
	require.NoError(t, server.Stop())
}

func TestNoServerIsAnError(t *testing.T) {
	require.ErrorContains(t, run(t.Context(), []string{"-n", "1", "-dial", programtest.NobodysAddress(t)}, io.Discard), "refused")
}
