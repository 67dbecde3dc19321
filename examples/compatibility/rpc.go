package main

import (
	"context"
	"errors"
	"net"
	"net/rpc"

	"github.com/containerd/ttrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Echo is a service of net/rpc.
type Echo struct{}

// Echo answers with what it was sent.
func (Echo) Echo(in []byte, out *[]byte) error {
	*out = in
	return nil
}

func tryNetRPC(ctx context.Context, n *network) error {
	server := rpc.NewServer()
	if err := server.Register(Echo{}); err != nil {
		return err
	}
	ln, err := n.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go func() {
		for {
			conn, err := ln.Accept() // ended by Close
			if err != nil {
				return
			}
			go server.ServeConn(conn)
		}
	}()
	defer ln.Close()
	conn, err := n.DialContext(ctx, "tcp", ln.Addr().String())
	if err != nil {
		return err
	}
	client := rpc.NewClient(conn)
	defer client.Close()
	var answer []byte
	err = client.Call("Echo.Echo", message, &answer)
	return errors.Join(err, check(answer))
}

// grpcEcho answers each payload with the same.
type grpcEcho struct {
	grpc_testing.UnimplementedTestServiceServer
}

func (grpcEcho) UnaryCall(_ context.Context, in *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
	return &grpc_testing.SimpleResponse{Payload: in.GetPayload()}, nil
}

func tryGRPC(ctx context.Context, n *network) error {
	server := grpc.NewServer()
	grpc_testing.RegisterTestServiceServer(server, grpcEcho{})
	ln, err := n.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go server.Serve(ln)
	defer server.Stop()
	conn, err := grpc.NewClient("passthrough:///"+ln.Addr().String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return n.DialContext(ctx, "tcp", addr) }))
	if err != nil {
		return err
	}
	defer conn.Close()
	answer, err := grpc_testing.NewTestServiceClient(conn).UnaryCall(ctx,
		&grpc_testing.SimpleRequest{Payload: &grpc_testing.Payload{Body: message}})
	if err != nil {
		return err
	}
	return check(answer.GetPayload().GetBody())
}

func tryTTRPC(ctx context.Context, n *network) error {
	server, err := ttrpc.NewServer()
	if err != nil {
		return err
	}
	server.RegisterService("echo", &ttrpc.ServiceDesc{Methods: map[string]ttrpc.Method{
		"Echo": func(_ context.Context, read func(any) error) (any, error) {
			var in wrapperspb.BytesValue
			err := read(&in)
			return &in, err
		},
	}})
	ln, err := n.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go server.Serve(ctx, ln)
	defer server.Close()
	conn, err := n.DialContext(ctx, "tcp", ln.Addr().String())
	if err != nil {
		return err
	}
	client := ttrpc.NewClient(conn)
	defer client.Close()
	var answer wrapperspb.BytesValue
	err = client.Call(ctx, "echo", "Echo", wrapperspb.Bytes(message), &answer)
	return errors.Join(err, check(answer.GetValue()))
}
