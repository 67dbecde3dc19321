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

	var conns sync.WaitGroup
	defer conns.Wait()    // ended by Shutdown, which ends the server's connections
	defer nats.Shutdown() // may be called again
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
		conns.Go(func() { carry(client, inside) })
	}
}

// carry passes bytes between the two until one of them ends. There are no
// half-closed connections in NATS.
func carry(client, inside net.Conn) {
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
