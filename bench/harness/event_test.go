package harness

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/panjf2000/gnet/v2"
	"github.com/stretchr/testify/require"
)

var eventWork = workload{Kind: roundTrips, Size: 64, Conns: 3, Loops: 1}

// eventClientOf returns a client of event handlers whose server is at addr.
func eventClientOf(t *testing.T, addr string) *client {
	t.Helper()
	c := newClient(transports[0], addr, eventWork)
	t.Cleanup(c.close)
	return c
}

// listenAnd serves each connection until the test ends.
func listenAnd(t *testing.T, serve func(net.Conn)) (addr string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				serve(conn)
			}()
		}
	}()
	return ln.Addr().String()
}

func TestHandlersCountWhatIsAnswered(t *testing.T) {
	s, err := startEventServer(transports[0].engine, site{Host: "127.0.0.1"}, eventWork)
	require.NoError(t, err)
	defer s.close()
	c := eventClientOf(t, s.address)
	c.load.connect(3)
	require.EqualValues(t, 3, c.load.work(0), "one request on each connection at least")
	more := func() bool { return c.load.work(20*time.Millisecond) > 3 }
	require.Eventually(t, more, 20*time.Second, time.Millisecond)
	c.load.closeConns()
	require.Zero(t, c.failed())
	require.Zero(t, s.obey(snapshot).Failures)
	require.Equal(t, "*gnet.conn", c.used)
}

func TestHandlersNoticeAnAnswerThatIsNotTheirOwn(t *testing.T) {
	addr := listenAnd(t, relay(func(n int, message []byte) {
		if n == 1 {
			message[60] ^= 1
		}
	}))
	c := eventClientOf(t, addr)
	c.load.connect(3)
	require.Zero(t, c.failed())
	c.load.work(time.Hour) // ended by the wrong answers
	r := c.failed()
	require.Contains(t, r.Failure, "ends wrong")
	require.GreaterOrEqual(t, r.Failures, 3)
}

func TestHandlersReportAConnectionThatEnds(t *testing.T) {
	addr := listenAnd(t, func(conn net.Conn) {
		message := make([]byte, 64)
		io.ReadFull(conn, message)
		conn.Write(message)
		io.ReadFull(conn, message)
	})
	c := eventClientOf(t, addr)
	c.load.connect(3)
	require.Zero(t, c.failed())
	c.load.work(time.Hour) // ended with the connections
	require.Contains(t, c.failed().Failure, "the connection has ended")
	require.Zero(t, c.load.work(time.Hour), "what has ended is not waited for")
}

func TestEventServerNoticesWrongAndCutMessages(t *testing.T) {
	for says, send := range map[string]func(conn net.Conn){
		"arrived where": func(conn net.Conn) {
			message := make([]byte, 64)
			for _, n := range []uint64{0, 1, 3} { // 2 is missing
				stamp(message, n, 0)
				conn.Write(message)
			}
		},
		"unexpected EOF": func(conn net.Conn) { conn.Write(make([]byte, 10)) },
	} {
		s, err := startEventServer(transports[0].engine, site{Host: "127.0.0.1"}, eventWork)
		require.NoError(t, err)
		conn, err := net.Dial("tcp", s.address)
		require.NoError(t, err)
		send(conn)
		conn.(*net.TCPConn).CloseWrite()
		io.Copy(io.Discard, conn) // ended by the server's close
		conn.Close()
		require.Contains(t, s.obey(snapshot).Failure, says)
		s.close()
	}
}

func TestEventServerThatCannotListenSaysWhy(t *testing.T) {
	e := transports[0].engine
	e.place = func(site) (string, error) { return "nowhere:http", nil }
	_, err := startEventServer(e, site{}, eventWork)
	require.ErrorContains(t, err, "listen at nowhere:http")
	_, err = startEventServer(engine{}, site{}, eventWork)
	require.ErrorContains(t, err, "serves no event handlers")
}

func TestHandlersAllocateNothingForARequest(t *testing.T) {
	c := eventClientOf(t, "")
	h := c.load.(*callers)
	var near, far slate
	k := &caller{conn: &near, loop: &callerLoop{latency: c.lats[0], out: make([]byte, 64)}, busy: true}
	near.ctx, far.ctx = k, new(echoed)
	h.until = time.Hour
	h.call(k, 0)
	s := &eventServer{server: server{w: eventWork}}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		far.read(near.written[:])
		s.OnTraffic(&far)
		near.read(far.written[:])
		h.OnTraffic(&near)
	}))
	require.Zero(t, c.failed())
	require.Zero(t, s.obey(snapshot).Failures)
	require.EqualValues(t, 101, k.ops)
}

// slate is a connection that keeps the last message written, and is given
// those to be read.
type slate struct {
	gnet.Conn
	ctx              any
	written, arrived [64]byte
	unread           bool
}

func (c *slate) read(message []byte) {
	copy(c.arrived[:], message)
	c.unread = true
}

func (c *slate) Context() any { return c.ctx }

func (c *slate) InboundBuffered() int {
	if c.unread {
		return len(c.arrived)
	}
	return 0
}

func (c *slate) Next(int) ([]byte, error) {
	c.unread = false
	return c.arrived[:], nil
}

func (c *slate) Write(p []byte) (int, error) { return copy(c.written[:], p), nil }
