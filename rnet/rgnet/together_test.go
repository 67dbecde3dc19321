package rgnet

import (
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/panjf2000/gnet/v2"
	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
)

var auto = carrier{name: "auto", cfg: Config{Transport: rnet.Auto}, host: streamCarriers[0].host}

// The role "ping" has clients of event handlers exchange messages with a server
// and says when they are done: CARRIER ADDRESS CONNECTIONS MESSAGES.
func init() {
	roles.Add("ping", func(args []string) error {
		k, err := carrierNamed(args[0])
		if err != nil {
			return err
		}
		conns, _ := strconv.Atoi(args[2])
		messages, _ := strconv.Atoi(args[3])
		failures := new(failed)
		p := &pingers{t: failures}
		client, err := k.cfg.NewClient(p, gnet.WithLogger(quiet{}))
		if err != nil {
			return err
		}
		if err := client.Start(); err != nil {
			return err
		}
		p.done.Add(conns)
		for range conns {
			if _, err := client.DialContext("tcp", args[1], messages); err != nil {
				return err
			}
		}
		p.done.Wait()
		client.Stop()
		fmt.Println("done")
		return nil
	})
	// The role "hold" keeps connections: CARRIER ADDRESS CONNECTIONS.
	roles.Add("hold", func(args []string) error {
		k, err := carrierNamed(args[0])
		if err != nil {
			return err
		}
		conns, _ := strconv.Atoi(args[2])
		for range conns {
			c, err := k.dialer().Dial("tcp", args[1])
			if err != nil {
				return err
			}
			if _, err := c.Write([]byte("x")); err != nil {
				return err
			}
		}
		fmt.Println("held")
		select {} // ended by the parent
	})
}

// failed is the testing.TB of a child.
type failed struct{ testing.TB }

func (failed) Errorf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
	os.Exit(1)
}

// One handler serves them all: TCP and streams, of its own process and of
// others, event handlers and goroutines.
func TestOneHandlerServesAllKindsOfPeersAtOnce(t *testing.T) {
	const each = 200
	s := auto.serve(t, new(echo), gnet.WithNumEventLoop(2))
	tcp := roles.Start(t, "ping", "tcp", s.address, strconv.Itoa(each), "20")
	streams := roles.Start(t, "ping", streamCarriers[0].name, s.address, strconv.Itoa(each), "20")
	var work sync.WaitGroup
	for _, k := range []carrier{overTCP, streamCarriers[0]} {
		for range 50 {
			c := k.dial(t, s.address)
			work.Go(func() { echoes(t, c, 20, 300) })
		}
	}
	work.Wait()
	require.Equal(t, "done", tcp.Line(t))
	require.Equal(t, "done", streams.Line(t))
}

func TestTheDeathOfAPeerIsToldToEachConnection(t *testing.T) {
	over(t, func(t *testing.T, k carrier) {
		const conns = 100
		got := make(chan struct{}, conns)
		closed := make(chan error, conns+1)
		s := k.serve(t, &script{
			traffic: func(c gnet.Conn) gnet.Action { c.Discard(-1); got <- struct{}{}; return gnet.None },
			close:   func(_ gnet.Conn, err error) gnet.Action { closed <- err; return gnet.None },
		}, gnet.WithNumEventLoop(2))
		<-closed // awaitListener's
		child := roles.Start(t, "hold", k.name, s.address, strconv.Itoa(conns))
		require.Equal(t, "held", child.Line(t))
		for range conns {
			<-got
		}
		child.Kill()
		for range conns {
			require.Error(t, <-closed)
		}
		c := k.dial(t, s.address)
		c.Write([]byte("x"))
		<-got // the server goes on
	})
}

func TestTheDeathOfAServerIsToldToAClient(t *testing.T) {
	for _, k := range []carrier{overTCP, streamCarriers[0]} {
		t.Run(k.name, func(t *testing.T) {
			address := k.freeAddress(t)
			server := roles.Start(t, "echo", k.name, address)
			k.awaitListener(t, address)
			closed := make(chan error, 10)
			client := k.client(t, &script{close: func(_ gnet.Conn, err error) gnet.Action {
				closed <- err
				return gnet.None
			}})
			for range 10 {
				_, err := client.Dial("tcp", address)
				require.NoError(t, err)
			}
			server.Kill()
			for range 10 {
				require.Error(t, <-closed)
			}
		})
	}
}

// With a transport demanded, others get a reset, and no callback.
func TestTCPPeersAreResetIfThePolicySaysSo(t *testing.T) {
	k := streamCarriers[0]
	s := k.serve(t, &script{open: func(c gnet.Conn) ([]byte, gnet.Action) {
		if !ownConn(c) {
			t.Error("a TCP peer is served")
		}
		return nil, gnet.None
	}})
	c, err := net.Dial("tcp", s.address)
	if err == nil {
		defer c.Close()
		c.SetDeadline(time.Now().Add(hang.Time))
		_, err = io.ReadAll(c)
	}
	require.Error(t, err)
}

func TestAStreamGoesOverNoSocket(t *testing.T) {
	s := auto.serve(t, &script{open: func(c gnet.Conn) ([]byte, gnet.Action) { return nil, gnet.None }})
	d := auto.dialer()
	d.HeadStart = hang.Time
	c, err := d.Dial("tcp", s.address)
	require.NoError(t, err)
	defer c.Close()
	require.IsType(t, (*rnet.Conn)(nil), c)
}

func TestRotateOfThePackageServesStreams(t *testing.T) {
	h := check(t, new(echo))
	s := &served{address: auto.freeAddress(t), ended: make(chan error, 1)}
	go func() { s.ended <- Rotate(h, []string{"tcp://" + s.address}, gnet.WithLogger(quiet{})) }()
	hang.Receive(t, h.booted, "the engine boots")
	s.engine = h.engine
	t.Cleanup(func() { s.stop(t) })
	auto.awaitListener(t, s.address)
	d := auto.dialer()
	d.HeadStart = hang.Time
	c, err := d.Dial("tcp", s.address)
	require.NoError(t, err)
	defer c.Close()
	require.IsType(t, (*rnet.Conn)(nil), c)
	echoes(t, c, 10, 100)
}

func TestRotateServesAtAllItsAddresses(t *testing.T) {
	over(t, func(t *testing.T, k carrier) {
		h := check(t, new(echo))
		addresses := []string{k.freeAddress(t), k.freeAddress(t)}
		s := &served{ended: make(chan error, 1)}
		go func() {
			s.ended <- k.cfg.Rotate(h, []string{"tcp://" + addresses[0], "TCP4://" + addresses[1]}, gnet.WithLogger(quiet{}))
		}()
		<-h.booted
		s.engine = h.engine
		t.Cleanup(func() { s.stop(t) })
		for _, a := range addresses {
			k.awaitListener(t, a)
			echoes(t, k.dial(t, a), 10, 100)
		}
	})
}
