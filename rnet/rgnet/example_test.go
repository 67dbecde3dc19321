package rgnet_test

import (
	"context"
	"fmt"
	"net"

	"github.com/panjf2000/gnet/v2"

	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/seed-b9b531af/ramjet/rnet/rgnet"
)

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

// A server of event handlers, and a client that waits for its answer. The same
// handler serves those who dial with package net.
func ExampleRun() {
	h := &shout{booted: make(chan struct{})}
	ended := make(chan error)
	go func() { ended <- rgnet.Run(h, "tcp://127.0.0.1:9327", gnet.WithMulticore(true)) }()
	<-h.booted

	for _, dial := range []func(network, address string) (net.Conn, error){rnet.Dial, net.Dial} {
		c, err := dial("tcp", "127.0.0.1:9327")
		if err != nil {
			fmt.Println(err)
			return
		}
		c.Write([]byte("hello"))
		answer := make([]byte, 5)
		c.Read(answer)
		fmt.Println(string(answer))
		c.Close()
	}

	h.engine.Stop(context.Background())
	fmt.Println(<-ended)
	// Output:
	// HELLO
	// HELLO
	// <nil>
}
