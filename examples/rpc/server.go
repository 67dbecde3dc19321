package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/rpc"
	"os"
	"sync"
	"time"

	"github.com/seed-b9b531af/ramjet/examples/internal/child"
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
	stop := context.AfterFunc(ctx, func() { ln.Close() })
	defer stop()
	server := rpc.NewServer()
	if err := server.Register(Echo{}); err != nil {
		return err
	}

	var conns sync.WaitGroup
	defer conns.Wait() // ended by the clients, or by ctx
	for {
		conn, err := ln.Accept() // ended by a client, or by ctx
		switch {
		case errors.Is(err, net.ErrClosed):
			return nil
		case err != nil: // out of descriptors, perhaps
			fmt.Fprintln(os.Stderr, "rpc:", err)
			time.Sleep(time.Second)
			continue
		}
		conns.Go(func() {
			stop := context.AfterFunc(ctx, func() { conn.Close() })
			defer stop()
			server.ServeConn(conn) // ended by the client, or by ctx
		})
	}
}
