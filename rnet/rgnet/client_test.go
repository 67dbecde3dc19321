package rgnet

import (
	"net"
	"sync"
	"testing"

	"github.com/panjf2000/gnet/v2"
	gerrors "github.com/panjf2000/gnet/v2/pkg/errors"
	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/rnet"
)

// client starts a client, which ends with the test at the latest.
func (k carrier) client(t testing.TB, handler gnet.EventHandler, opts ...gnet.Option) *Client {
	t.Helper()
	c, err := k.cfg.NewClient(check(t, handler), append([]gnet.Option{gnet.WithLogger(quiet{})}, opts...)...)
	require.NoError(t, err)
	require.NoError(t, c.Start())
	t.Cleanup(sync.OnceFunc(func() { c.Stop() }))
	return c
}

// pingers send as many messages on each connection as its context says, one
// after the other, and then close it.
type pingers struct {
	gnet.BuiltinEventEngine
	t    testing.TB
	done sync.WaitGroup
}

func (p *pingers) OnOpen(c gnet.Conn) ([]byte, gnet.Action) { return request[:], gnet.None }

func (p *pingers) OnTraffic(c gnet.Conn) gnet.Action {
	for c.InboundBuffered() >= len(request) {
		c.Discard(len(request))
		left := c.Context().(int) - 1
		c.SetContext(left)
		if left == 0 {
			return gnet.Close
		}
		c.Write(request[:])
	}
	return gnet.None
}

func (p *pingers) OnClose(c gnet.Conn, err error) gnet.Action {
	if err != nil || c.Context().(int) != 0 {
		p.t.Errorf("closed with %v messages left: %v", c.Context(), err)
	}
	p.done.Done()
	return gnet.None
}

func TestClientsAndServersOfManyLoops(t *testing.T) {
	over(t, func(t *testing.T, k carrier) {
		s := k.serve(t, new(echo), gnet.WithNumEventLoop(2))
		p := &pingers{t: t}
		client := k.client(t, p, gnet.WithNumEventLoop(2))
		for range 200 {
			p.done.Add(1)
			_, err := client.DialContext("tcp", s.address, 100)
			require.NoError(t, err)
		}
		finish(t, &p.done)
	})
}

func TestStoppingAClientClosesItsConnections(t *testing.T) {
	over(t, func(t *testing.T, k carrier) {
		gone := make(chan error, 20)
		s := k.serve(t, &script{close: func(_ gnet.Conn, err error) gnet.Action {
			gone <- err
			return gnet.None
		}})
		hang.Receive(t, gone, "the server is told") // awaitListener's
		closed := 0
		client := k.client(t, &script{close: func(gnet.Conn, error) gnet.Action { closed++; return gnet.None }})
		for range 10 {
			_, err := client.Dial("tcp", s.address)
			require.NoError(t, err)
		}
		require.NoError(t, client.Stop())
		require.Equal(t, 10, closed)
		for range 10 {
			hang.Receive(t, gone, "the server is told")
		}
		_, err := client.Dial("tcp", s.address)
		require.Error(t, err)
	})
}

func TestAClientEnrollsConnectionsOfTheSystem(t *testing.T) {
	over(t, func(t *testing.T, k carrier) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer ln.Close()
		opened := make(chan any, 1)
		client := k.client(t, &script{open: func(c gnet.Conn) ([]byte, gnet.Action) {
			opened <- c.Context()
			return []byte("hello"), gnet.None
		}})
		dialed, err := net.Dial("tcp", ln.Addr().String())
		require.NoError(t, err)
		accepted, err := ln.Accept()
		require.NoError(t, err)
		defer accepted.Close()
		_, err = client.EnrollContext(dialed, "mine")
		require.NoError(t, err)
		require.Equal(t, "mine", hang.Receive(t, opened, "OnOpen is called"))
		got := make([]byte, 5)
		_, err = accepted.Read(got)
		require.NoError(t, err)
		require.Equal(t, "hello", string(got))
	})
}

// Neither does a loop, and the stream goes on.
func TestAClientDoesNotEnrollStreams(t *testing.T) {
	k := streamCarriers[0]
	s := k.serve(t, new(echo))
	stream := k.dial(t, s.address)
	client := k.client(t, new(script))
	served, err := client.Dial("tcp", s.address)
	require.NoError(t, err)
	ways := map[string]func() error{
		"Client.Enroll":        func() error { _, err := client.Enroll(stream); return err },
		"Client.EnrollContext": func() error { _, err := client.EnrollContext(stream, "mine"); return err },
		"EventLoop.Enroll": func() error {
			_, err := served.EventLoop().Enroll(t.Context(), stream)
			return err
		},
	}
	for name, enroll := range ways {
		t.Run(name, func(t *testing.T) {
			err := enroll()
			require.ErrorIs(t, err, gerrors.ErrUnsupportedOp)
			require.ErrorContains(t, err, s.address)
			require.ErrorContains(t, err, "Client.Dial")
			echoes(t, stream, 1, 10)
		})
	}
}

// A client whose policy allows it falls back to TCP where nobody knows of
// anything else.
func TestAClientFallsBackToTCP(t *testing.T) {
	s := overTCP.serve(t, new(echo))
	p := &pingers{t: t}
	client := carrier{cfg: Config{Transport: rnet.Auto}}.client(t, p)
	p.done.Add(1)
	c, err := client.DialContext("tcp", s.address, 10)
	require.NoError(t, err)
	require.False(t, ownConn(c))
	finish(t, &p.done)
}

func TestADialThatFailsTellsWhy(t *testing.T) {
	over(t, func(t *testing.T, k carrier) {
		_, err := k.client(t, new(script)).Dial("tcp", k.freeAddress(t))
		require.Error(t, err)
	})
}
