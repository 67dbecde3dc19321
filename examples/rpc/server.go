package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/rpc"

	"github.com/seed-b9b531af/ramjet/examples/internal/child"
	"github.com/seed-b9b531af/ramjet/examples/internal/program"
	"github.com/seed-b9b531af/ramjet/rnet"
)

// Echo is the service.
type Echo struct{}

// Bytes answers with its argument.
func (Echo) Bytes(in []byte, out *[]byte) error {
	*out = in
	return nil
}

// serve answers calls on addr until ctx ends, and returns when the last
// connection is closed.
func serve(ctx context.Context, addr string, out io.Writer) error {
	ln, err := rnet.Listen("tcp", addr) // was net.Listen; nothing else changes
	if err != nil {
		return err
	}
	fmt.Fprintln(out, child.Announcement+ln.Addr().String())
	server := rpc.NewServer()
	if err := server.Register(Echo{}); err != nil {
		return err
	}

	program.Accept(ctx, ln, func(conn net.Conn) {
		stop := context.AfterFunc(ctx, func() { conn.Close() })
		defer stop()
		server.ServeConn(conn) // ended by the client, or by ctx
	})
	return nil
}
