package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/seed-b9b531af/ramjet/examples/internal/child"
	"github.com/seed-b9b531af/ramjet/rnet"
)

// drain is how long a client may take to read what is on its way when the server ends.
const drain = 2 * time.Second

// serve runs a nats-server whose clients come by rnet, until ctx ends.
func serve(ctx context.Context, addr string, out io.Writer) error {
	nats, err := server.NewServer(&server.Options{DontListen: true, NoLog: true, NoSigs: true})
	if err != nil {
		return err
	}
	nats.Start()
	defer nats.WaitForShutdown() // ended by Shutdown
	defer nats.Shutdown()
	if !nats.ReadyForConnections(10 * time.Second) {
		return errors.New("the nats-server does not start")
	}
	ln, err := rnet.Listen("tcp", addr)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, child.Announcement+ln.Addr().String())
	stop := context.AfterFunc(ctx, func() { ln.Close() })
	defer stop()

	ctx, end := context.WithCancel(ctx)
	var conns sync.WaitGroup
	defer conns.Wait()    // ended by Shutdown, which ends the server's connections, and by end
	defer nats.Shutdown() // may be called again
	defer end()
	for {
		client, err := ln.Accept() // ended by a client, or by ctx
		switch {
		case errors.Is(err, net.ErrClosed):
			return nil
		case err != nil:
			return err
		}
		inside, err := nats.InProcessConn()
		if err != nil {
			client.Close()
			return err
		}
		conns.Go(func() { carry(ctx, client, inside) })
	}
}

// carry passes bytes between the two until one of them ends. There are no
// half-closed connections in NATS. A client that does not read is waited for
// until ctx ends, and drain after it.
func carry(ctx context.Context, client, inside net.Conn) {
	stop := context.AfterFunc(ctx, func() { client.SetWriteDeadline(time.Now().Add(drain)) })
	defer stop()
	var back sync.WaitGroup
	defer back.Wait() // ended by Close
	back.Go(func() {
		_, _ = io.Copy(client, inside) // ended by the server, or by Close
		client.Close()
		inside.Close()
	})
	_, _ = io.Copy(inside, client) // ended by the client, or by Close
	client.Close()
	inside.Close()
}
