package rgnet

import (
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/panjf2000/gnet/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/hang"
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

	// parked has one echo after the other until the loop waits in this way after one.
	parked := func() {
		t.Helper()
		hang.Eventually(t, "the loop parks", func() bool {
			before := l.poller.Stats()
			if assert.NoError(t, served.AsyncWrite(request[:1], nil)) {
				hang.Receive(t, echoed, "the echo")
			}
			for l.rest.Load() == awake { // ended by the loop, when nothing comes
				runtime.Gosched()
			}
			after := l.poller.Stats()
			return before.ThreadWaits == after.ThreadWaits && before.Sleeps == after.Sleeps
		})
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
