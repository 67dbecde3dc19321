package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/seed-b9b531af/ramjet/examples/internal/child"
	"github.com/seed-b9b531af/ramjet/rnet"
)

// serve echoes on addr until ctx ends, and returns when the last connection
// is closed.
func serve(ctx context.Context, addr string, out io.Writer) error {
	ln, err := rnet.Listen("tcp", addr) // was net.Listen
	if err != nil {
		return err
	}
	fmt.Fprintln(out, child.Announcement+ln.Addr().String())
	stop := context.AfterFunc(ctx, func() { ln.Close() })
	defer stop()

	var conns sync.WaitGroup
	defer conns.Wait() // ended by the clients, or by ctx, see reply
	for {
		conn, err := ln.Accept() // ended by a client, or by ctx
		switch {
		case err == nil:
			conns.Go(func() { reply(ctx, conn) })
		case errors.Is(err, net.ErrClosed):
			return nil
		default: // out of descriptors, perhaps
			fmt.Fprintln(os.Stderr, "echo:", err)
			time.Sleep(time.Second)
		}
	}
}

// drain is how long a client may take to read its last echoes when the server
// shuts down.
const drain = 2 * time.Second

// reply echoes until the client has sent its last byte, or fails. When ctx
// ends it reads no more, and sends what it has read.
func reply(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() {
		conn.SetReadDeadline(time.Now())
		conn.SetWriteDeadline(time.Now().Add(drain))
	})
	defer stop()
	_, _ = io.Copy(conn, conn) // whoever breaks off knows why
}
