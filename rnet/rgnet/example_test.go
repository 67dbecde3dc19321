package rgnet_test

import (
	"context"
	"fmt"
	"io"
	"net"

	"github.com/panjf2000/gnet/v2"

	"github.com/seed-b9b531af/ramjet/internal/freeport"
	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/seed-b9b531af/ramjet/rnet/rgnet"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// freeAddress returns an address at which nobody listens.
func freeAddress() string {
	address, err := freeport.Address("127.0.0.1")
	check(err)
	return address
}

// shout is an ordinary gnet handler.
type shout struct {
	gnet.BuiltinEventEngine
	engine gnet.Engine
	booted chan struct{}
}

func (h *shout) OnBoot(engine gnet.Engine) gnet.Action {
	h.engine = engine
	close(h.booted)
	return gnet.None
}

func (h *shout) OnTraffic(c gnet.Conn) gnet.Action {
	p, _ := c.Next(-1)
	for i := range p {
		if p[i] >= 'a' && p[i] <= 'z' {
			p[i] -= 'a' - 'A'
		}
	}
	c.Write(p)
	return gnet.None
}

// A server of event handlers. The same handler serves those who dial with
// package rnet and those who dial with package net.
func ExampleRun() {
	address := freeAddress()
	h := &shout{booted: make(chan struct{})}
	ended := make(chan error)
	go func() { ended <- rgnet.Run(h, "tcp://"+address, gnet.WithMulticore(true)) }()
	<-h.booted

	for _, dial := range []func(network, address string) (net.Conn, error){rnet.Dial, net.Dial} {
		conn, err := dial("tcp", address)
		check(err)
		_, err = conn.Write([]byte("hello"))
		check(err)
		answer := make([]byte, 5)
		_, err = io.ReadFull(conn, answer)
		check(err)
		fmt.Printf("%s\n", answer)
		conn.Close()
	}

	check(h.engine.Stop(context.Background()))
	fmt.Println(<-ended)
	// Output:
	// HELLO
	// HELLO
	// <nil>
}

// receiver is a handler that passes on what it receives, five bytes at a time.
type receiver struct {
	gnet.BuiltinEventEngine
	received chan string
}

func (h *receiver) OnTraffic(c gnet.Conn) gnet.Action {
	for c.InboundBuffered() >= 5 {
		p, _ := c.Next(5)
		h.received <- string(p)
	}
	return gnet.None
}

// A client of event handlers. Its server may be of this package, of rnet, or of
// net.
func ExampleClient() {
	ln, err := rnet.Listen("tcp", "127.0.0.1:0")
	check(err)
	defer ln.Close()
	go func() {
		conn, err := ln.Accept()
		check(err)
		io.Copy(conn, conn)
		conn.Close()
	}()

	h := &receiver{received: make(chan string, 1)}
	client, err := rgnet.NewClient(h)
	check(err)
	check(client.Start())
	conn, err := client.Dial("tcp", ln.Addr().String())
	check(err)
	check(conn.AsyncWrite([]byte("hello"), nil)) // Write is for the handler alone
	fmt.Println(<-h.received)
	check(client.Stop())
	// Output: hello
}
