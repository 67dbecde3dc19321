package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/seed-b9b531af/ramjet/examples/internal/child"
	"github.com/seed-b9b531af/ramjet/examples/internal/program"
)

const (
	dialTime = 10 * time.Second // longest dial
	drain    = 5 * time.Second  // longest end of a connection at a shutdown
)

// proxy carries connections from one side to the other.
type proxy struct {
	from, to side
}

// listen starts to listen and announces the address.
func (p *proxy) listen(out io.Writer) (net.Listener, error) {
	ln, err := p.from.listen()
	if err == nil {
		fmt.Fprintln(out, child.Announcement+ln.Addr().String())
	}
	return ln, err
}

// serve carries what ln accepts until ctx ends, and returns when the last
// connection has come to its end, or the time for that is over.
func (p *proxy) serve(ctx context.Context, ln net.Listener) {
	program.Accept(ctx, ln, func(conn net.Conn) { p.carry(ctx, conn) })
}

// carry dials the other side and carries bytes both ways until both have
// ended.
func (p *proxy) carry(ctx context.Context, client net.Conn) {
	defer client.Close()
	dialCtx, cancel := context.WithTimeout(ctx, dialTime)
	server, err := p.to.dial(dialCtx)
	cancel()
	if err != nil {
		slog.Error("proxy: dial", "err", err)
		reset(client)
		return
	}
	defer server.Close()
	stop := context.AfterFunc(ctx, func() {
		end := time.Now().Add(drain)
		client.SetDeadline(end)
		server.SetDeadline(end)
	})
	defer stop()

	var back sync.WaitGroup
	back.Go(func() { pass(client, server) })
	pass(server, client)
	back.Wait() // ended by the server's last byte, an error, or the deadline
}

// stream is what TCP and rnet connections have in common beyond net.Conn.
type stream interface {
	net.Conn
	CloseWrite() error
	SetLinger(sec int) error
}

// pass copies from src to dst until the last byte, which it passes on too:
// the other way stays open, as some protocols need. After an error neither
// connection is of use, and both ends learn that it was not an orderly end.
func pass(dst, src net.Conn) {
	_, err := io.Copy(dst, src)
	if err == nil {
		err = dst.(stream).CloseWrite()
	}
	if err != nil {
		reset(dst)
		reset(src)
	}
}

// reset closes conn so that the peer sees a connection reset.
func reset(conn net.Conn) {
	_ = conn.(stream).SetLinger(0) // fails if it is closed, which is as good
	_ = conn.Close()
}
