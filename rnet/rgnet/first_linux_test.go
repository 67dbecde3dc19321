package rgnet

import (
	"fmt"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/panjf2000/gnet/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/rnet"
)

// soft reaches streams alone.
var soft = carrier{name: "soft", cfg: Config{Transport: rnet.Soft}}

func TestWhoFindsTheTCPListenerFindsStreamsToo(t *testing.T) {
	for range 10 {
		address := auto.freeAddress(t)
		found := make(chan error, 1)
		go func() {
			var err error
			for end := time.Now().Add(hang.Time); time.Now().Before(end); {
				var c net.Conn
				if c, err = net.Dial("tcp", address); err == nil {
					c.Close()
					if c, err = soft.dialer().Dial("tcp", address); err == nil {
						c.Close()
					}
					break
				}
			}
			found <- err
		}()
		overTCP := make(chan struct{}, 1)
		s := auto.serveAt(t, &script{close: func(c gnet.Conn, _ error) gnet.Action {
			if !ownConn(c) {
				overTCP <- struct{}{}
			}
			return gnet.None
		}}, address)
		require.NoError(t, <-found) // ended by patience
		// gnet does not close what it accepts when its loops have been told to end.
		hang.Receive(t, overTCP, "the TCP connection is closed")
		s.stop(t)
	}
}

// A peer that comes while the engine starts waits for its loops.
func TestAPeerThatComesBeforeTheLoopsIsServed(t *testing.T) {
	address := auto.freeAddress(t)
	dialed := make(chan error, 1)
	h := &script{
		boot: func(gnet.Engine) gnet.Action {
			go func() {
				c, err := soft.dialer().Dial("tcp", address)
				if err == nil {
					_, err = c.Write([]byte("x"))
					c.Close()
				}
				dialed <- err
			}()
			time.Sleep(20 * time.Millisecond) // so that it waits, most of the time
			return gnet.None
		},
		traffic: func(c gnet.Conn) gnet.Action { return gnet.Close },
	}
	s := auto.serveAt(t, h, address)
	select { // ended by the dial, or the clock
	case err := <-dialed:
		require.NoError(t, err)
	case <-time.After(hang.Time):
		t.Fatal("the peer still waits")
	}
	s.stop(t)
}

func TestAPeerThatWaitsForTheLoopsIsRefusedWhenThereAreNone(t *testing.T) {
	address := auto.freeAddress(t)
	dialed := make(chan error, 1)
	h := &script{boot: func(gnet.Engine) gnet.Action {
		go func() {
			c, err := soft.dialer().Dial("tcp", address)
			if err == nil {
				c.Close()
			}
			dialed <- err
		}()
		time.Sleep(20 * time.Millisecond) // so that it waits, most of the time
		return gnet.Shutdown
	}}
	require.NoError(t, auto.cfg.Run(h, "tcp://"+address, gnet.WithLogger(quiet{})))
	select { // ended by the dial, or the clock
	case err := <-dialed:
		require.Error(t, err)
	case <-time.After(hang.Time):
		t.Fatal("the peer still waits")
	}
}

// lateBridge ticks first when as many peers are served over TCP.
type lateBridge struct {
	*bridge
	peers int
}

func (b lateBridge) OnTick() (time.Duration, gnet.Action) {
	for end := time.Now().Add(hang.Time); CountConnections(b.eng) < b.peers && time.Now().Before(end); {
		hang.Pause()
	}
	return b.bridge.OnTick()
}

// Those that connect before gnet has its other listeners are all on one loop.
func TestLoopsThatServeManyTCPPeersServeStreamsToo(t *testing.T) {
	const peers = 10
	address := auto.freeAddress(t)
	var engine gnet.Engine
	h := &script{boot: func(eng gnet.Engine) gnet.Action {
		engine = eng
		for range peers {
			c, err := net.Dial("tcp", address)
			require.NoError(t, err)
			t.Cleanup(func() { c.Close() })
		}
		return gnet.None
	}}
	b, err := auto.cfg.bridge(h, []gnet.Option{gnet.WithNumEventLoop(3)})
	require.NoError(t, err)
	defer b.forget()
	ended := make(chan error, 1)
	go func() {
		ended <- gnet.Run(lateBridge{b, peers}, "tcp://"+address, gnet.WithNumEventLoop(3), gnet.WithReusePort(true),
			gnet.WithLoadBalancing(gnet.LeastConnections), gnet.WithTicker(true), gnet.WithLogger(quiet{}))
	}()
	hang.Receive(t, b.running, "each loop has its wake socket")
	require.NoError(t, engine.Stop(t.Context()))
	require.NoError(t, hang.Receive(t, ended, "the end"))
}

func TestRunFailsAsGnetDoesWhereThePortIsTaken(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	at := "tcp://" + taken.Addr().String()
	want := gnet.Run(&script{}, at, gnet.WithLogger(quiet{}))
	require.ErrorIs(t, want, syscall.EADDRINUSE)
	for _, k := range []carrier{auto, soft} {
		assert.Equal(t, want, k.cfg.Run(&script{}, at, gnet.WithLogger(quiet{})))
	}
}

// To gnet [::] is IPv6 alone: somebody else may serve IPv4 at the port.
func TestAnEngineForIPv6AloneHasNoStreamsOfIPv4(t *testing.T) {
	_, free, err := net.SplitHostPort(auto.freeAddress(t))
	require.NoError(t, err)
	for _, port := range []string{free, "0"} {
		booted, ended := make(chan gnet.Engine, 1), make(chan error, 1)
		h := &script{boot: func(e gnet.Engine) gnet.Action {
			booted <- e
			return gnet.None
		}}
		go func() { ended <- auto.cfg.Run(h, "tcp://[::]:"+port, gnet.WithLogger(quiet{})) }()
		engine := hang.Receive(t, booted, "the engine")
		hang.Eventually(t, "it listens", func() bool { return len(rnet.ReadStats().Listeners) == 1 })
		at := rnet.ReadStats().Listeners[0].Addr.Port()
		_, err := soft.dialer().Dial("tcp", fmt.Sprintf("127.0.0.1:%d", at))
		require.Equal(t, fallback.NoListener, fallback.Classify(err), "%v", err)
		c, err := soft.dialer().Dial("tcp", fmt.Sprintf("[::1]:%d", at))
		require.NoError(t, err)
		c.Close()
		require.NoError(t, engine.Stop(t.Context()))
		require.NoError(t, hang.Receive(t, ended, "the end"))
	}
}
