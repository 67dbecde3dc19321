package rgnet

import (
	"context"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/panjf2000/gnet/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/rnet/internal/mux"
)

// While the loop of a client parks at its session's channel gnet does not look at what it is given. Here that would
// last for ever.
func TestAParkedLoopDoesWhatGnetIsGiven(t *testing.T) {
	k := streamCarriers[0]
	s := k.serve(t, new(echo))
	echoed := make(chan struct{}, 1)
	client, err := k.cfg.NewClient(check(t, &script{traffic: func(c gnet.Conn) gnet.Action {
		c.Discard(-1)
		echoed <- struct{}{}
		return gnet.None
	}}), gnet.WithLogger(quiet{}))
	require.NoError(t, err)
	client.b.parkTime = time.Hour
	require.NoError(t, client.Start())
	served, err := client.Dial("tcp", s.address)
	require.NoError(t, err)
	l := client.b.allLoops()[0]

	// parks reports whether the loop waits in this way after an echo.
	parks := func() bool {
		before, parks := l.poller.Stats(), l.poller.Parks()
		slept := func() bool {
			after := l.poller.Stats()
			return after.ThreadWaits != before.ThreadWaits || after.Sleeps != before.Sleeps
		}
		if assert.NoError(t, served.AsyncWrite(request[:1], nil)) {
			hang.Receive(t, echoed, "the echo")
		}
		parked := func() bool { return l.poller.Parks() != parks }
		for !parked() && !slept() { // ended by the loop, when nothing comes
			runtime.Gosched()
		}
		return parked() && l.rest.Load() == sleeping
	}
	parked := func() {
		t.Helper()
		hang.Eventually(t, "the loop parks", parks)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	for name, enroll := range map[string]func(net.Conn){
		"Client.Enroll": func(nc net.Conn) {
			_, err := client.Enroll(nc)
			assert.NoError(t, err)
		},
		"EventLoop.Enroll": func(nc net.Conn) {
			results, err := served.EventLoop().Enroll(t.Context(), nc)
			if assert.NoError(t, err) {
				assert.NoError(t, (<-results).Err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			nc, err := net.Dial("tcp", ln.Addr().String())
			require.NoError(t, err)
			peer, err := ln.Accept()
			require.NoError(t, err)
			parked()
			hang.Start(t, func() { enroll(nc) })()
			peer.Close()
			hang.Eventually(t, "the connection is closed", func() bool { return l.tcp.Load() == 0 })
		})
	}
	parked()
	hang.Start(t, func() { assert.NoError(t, client.Stop()) })()
}

// heldUp is an event loop of gnet that comes to what it is given when the test says so.
type heldUp struct {
	gnet.EventLoop
	results chan gnet.RegisteredResult
}

func (h heldUp) Enroll(context.Context, net.Conn) (<-chan gnet.RegisteredResult, error) {
	return h.results, nil
}

// gnet prepares a connection on another goroutine, and gives it to its loop some time later.
func TestALoopDoesNotParkBeforeGnetHasOpenedAConnection(t *testing.T) {
	h := heldUp{results: make(chan gnet.RegisteredResult, 1)}
	b := &bridge{client: true, down: make(chan struct{})}
	socket, nc, err := newWakeSocket(false)
	require.NoError(t, err)
	defer nc.Close()
	defer socket.remove()
	l := &eventLoop{b: b, gnet: h, wakeup: socket, poller: new(mux.Poller), tcp: new(atomic.Int64)}
	l.spin.limit = l.poller.Spin()
	b.loops = []*eventLoop{l}
	results, err := l.Enroll(t.Context(), new(net.UnixConn))
	require.NoError(t, err)
	for range 4 { // iterations of gnet
		l.run()
		require.True(t, b.gnetIsCalled())
	}
	h.results <- gnet.RegisteredResult{}
	hang.Receive(t, results, "the result")
	hang.Eventually(t, "gnet has done it", func() bool { return !b.gnetIsCalled() })
}
