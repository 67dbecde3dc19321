package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/seed-b9b531af/ramjet/examples/internal/child"
	"github.com/seed-b9b531af/ramjet/examples/internal/program"
	"github.com/seed-b9b531af/ramjet/rnet"
)

// serve echoes on addr until ctx ends, and returns when the last connection
// is closed.
func serve(ctx context.Context, addr string, out io.Writer) error {
	ln, err := rnet.Listen(networkOf(addr), addr) // was net.Listen
	if err != nil {
		return err
	}
	fmt.Fprintln(out, child.Announcement+ln.Addr().String())
	program.Accept(ctx, ln, func(conn net.Conn) { reply(ctx, conn) })
	return nil
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
