package harness

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// pipeTo returns one end of a connection whose other end serve has.
func pipeTo(t *testing.T, serve func(net.Conn)) net.Conn {
	t.Helper()
	near, far := net.Pipe()
	var done sync.WaitGroup
	done.Go(func() { serve(far) })
	t.Cleanup(func() {
		near.Close()
		far.Close()
		done.Wait()
	})
	return near
}

// relay echoes messages of 64 bytes after change has had them.
func relay(change func(n int, message []byte)) func(net.Conn) {
	return func(conn net.Conn) {
		message := make([]byte, 64)
		for n := 0; ; n++ {
			if _, err := io.ReadFull(conn, message); err != nil {
				return
			}
			change(n, message)
			if _, err := conn.Write(message); err != nil {
				return
			}
		}
	}
}

func TestClientNoticesAnAnswerThatIsNotItsOwn(t *testing.T) {
	var old []byte
	for name, change := range map[string]func(n int, message []byte){
		"repeated": func(n int, message []byte) {
			if n == 0 {
				old = append([]byte(nil), message...)
			} else {
				copy(message, old)
			}
		},
		"damaged": func(n int, message []byte) { message[60] ^= 1 },
	} {
		l := newLink(pipeTo(t, relay(change)), 1, 64, newRecorders(1)[0])
		require.ErrorContains(t, l.roundTrips(time.Now(), time.Hour), "message", name)
	}
}

func TestClientNoticesALostOneWayMessage(t *testing.T) {
	conn := pipeTo(t, func(conn net.Conn) {
		message := make([]byte, 64)
		for {
			if _, err := io.ReadFull(conn, message); err != nil {
				return
			}
			if _, last := number(message); last != 0 {
				conn.Write(make([]byte, 8)) // none has arrived
			}
		}
	})
	l := newLink(conn, 1, 64, newRecorders(1)[0])
	var stop atomic.Bool
	stop.Store(true)
	require.ErrorContains(t, l.burst(&stop), "the server counts 0 messages of 1")
}

func TestServerNoticesWrongMessages(t *testing.T) {
	for _, k := range []kind{roundTrips, oneWay} {
		near, far := net.Pipe()
		s := &server{w: workload{Kind: k, Size: 64}}
		served := make(chan error, 1)
		go func() { served <- s.handler()(far) }()
		message := make([]byte, 64)
		go io.Copy(io.Discard, near)
		for _, n := range []uint64{0, 1, 3} { // 2 is missing
			stamp(message, n, 0)
			near.Write(message)
		}
		require.ErrorContains(t, <-served, "arrived where", k) // ended by the wrong message
		near.Close()
		far.Close()
	}
}

func TestServerReportsAConnectionCutInAMessage(t *testing.T) {
	for _, k := range []kind{roundTrips, oneWay, openings} {
		near, far := net.Pipe()
		s := &server{w: workload{Kind: k, Size: 64}}
		served := make(chan error, 1)
		go func() { served <- s.handler()(far) }()
		near.Write(make([]byte, 10))
		near.Close()
		require.ErrorContains(t, <-served, "read", k) // ended by the close
		far.Close()
	}
}

func TestLoopsAllocateNothing(t *testing.T) {
	l := newLink(pipeTo(t, relay(func(int, []byte) {})), 1, 64, newRecorders(1)[0])
	epoch := time.Now()
	require.Zero(t, testing.AllocsPerRun(100, func() { require.NoError(t, l.roundTrips(epoch, 0)) }))
}

func TestOpenLoopChargesAStallToEveryMessageDueInIt(t *testing.T) {
	const stall = 50 * time.Millisecond
	stalled := atomic.Bool{}
	conn := pipeTo(t, relay(func(n int, _ []byte) {
		if n == 1 && stalled.CompareAndSwap(false, true) {
			time.Sleep(stall)
		}
	}))
	c := &client{w: workload{Kind: roundTrips, Size: 64, Conns: 1, Rate: 1000}, epoch: time.Now(), lats: newRecorders(1), late: newRecorders(1)[0]}
	c.links = []*link{newLink(conn, 1, 64, c.lats[0])}
	require.Positive(t, c.work(20*stall)) // long enough for a busy machine to be in time after it
	require.Zero(t, c.failures, c.first)

	// One message met the stall; some 50 were due while it lasted. In a closed
	// loop one of all would have been slow.
	slow := int64(0)
	for _, bar := range c.lats[0].h.Distribution() {
		if bar.From >= int64(stall/5) {
			slow += bar.Count
		}
	}
	require.Greater(t, slow, int64(10))
}

// However late the machine lets it begin, a round has figures.
func TestOpenLoopsSendTheFirstMessageInAnyCase(t *testing.T) {
	for _, program := range []string{"", "echo"} {
		c := &client{w: workload{Kind: roundTrips, Size: 64, Conns: 1, Rate: 0.001, Program: program}, epoch: time.Now(), lats: newRecorders(1), late: newRecorders(1)[0]}
		c.links = []*link{newLink(pipeTo(t, relay(func(int, []byte) {})), 1, 64, c.lats[0])}
		require.EqualValues(t, 1, c.work(1), "it is over before anything can be sent")
		require.Zero(t, c.failures, c.first)
	}
}

func TestOpenLoopEndsWhenTheConnectionBreaks(t *testing.T) {
	conn := pipeTo(t, func(conn net.Conn) { conn.Close() })
	c := &client{w: workload{Kind: roundTrips, Size: 64, Conns: 1, Rate: 1000}, epoch: time.Now(), lats: newRecorders(1), late: newRecorders(1)[0]}
	c.links = []*link{newLink(conn, 1, 64, c.lats[0])}
	require.Zero(t, c.work(5*time.Millisecond))
	require.Positive(t, c.failures)
}

func TestOpenLoopCountsMessagesThatAreNotAnswered(t *testing.T) {
	conn := pipeTo(t, func(conn net.Conn) { io.Copy(io.Discard, conn) })
	c := &client{w: workload{Kind: roundTrips, Size: 64, Conns: 1, Rate: 1000}, epoch: time.Now(), lats: newRecorders(1), late: newRecorders(1)[0]}
	c.links = []*link{newLink(conn, 1, 64, c.lats[0])}
	require.Zero(t, c.work(200*time.Millisecond))
	require.ErrorContains(t, c.first, "messages were not answered")
}

func TestScheduleSpreadsMessagesEvenlyOverLinks(t *testing.T) {
	s := schedule{start: time.Second, interval: float64(time.Millisecond), links: 4}
	require.Equal(t, time.Second, s.due(0, 0))
	require.Equal(t, time.Second+3*time.Millisecond, s.due(3, 0))
	require.Equal(t, time.Second+9*time.Millisecond, s.due(1, 2))
}

func TestFailedDialIsCountedOnceForEachDialer(t *testing.T) {
	broken := transport{name: "tcp", dial: func(string) (net.Conn, error) { return nil, errors.New("no route") }}
	c := newClient(broken, "", workload{Kind: openings, Size: 64, Conns: 3})
	require.Zero(t, c.openings(time.Second))
	require.Equal(t, 3, c.failures)
	require.ErrorContains(t, c.first, "client: dial: no route")
}

func TestClientNoticesAFallBackToTCP(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	for name, fellBack := range map[string]int64{"tcp": 0, "ramjet": 1} {
		dial := func(addr string) (net.Conn, error) { return net.Dial("tcp", addr) }
		c := newClient(transport{name: name, dial: dial}, ln.Addr().String(), workload{Conns: 1})
		conn, _, err := c.dial()
		require.NoError(t, err)
		conn.Close()
		require.Equal(t, fellBack, c.fellBack.Load(), name)
		require.Equal(t, "*net.TCPConn", c.used)
	}
}

func TestChildRefusesWhatItDoesNotUnderstand(t *testing.T) {
	for text, says := range map[string]string{
		"{":                                  "read assignment",
		`{"role":"server","transport":"ip"}`: "unknown transport",
		`{"role":"judge","transport":"tcp"}`: "unknown role",
	} {
		require.ErrorContains(t, serveChild(text, strings.NewReader(""), io.Discard), says)
	}
	var out strings.Builder
	text, err := json.Marshal(assignment{Role: dialing, Transport: "tcp", Workload: workload{Conns: 1}})
	require.NoError(t, err)
	require.NoError(t, serveChild(string(text), strings.NewReader(`"dance"`), &out))
	require.Contains(t, out.String(), `does not know`)
}

func TestProportionalSetSizeIsReadFromTheKernelsText(t *testing.T) {
	text := []byte("00400000-7ff [rollup]\nRss:   9999 kB\nPss:     1234 kB\nPss_Dirty: 7 kB\n")
	require.EqualValues(t, 1234<<10, parseRollup(text, "Pss:"))
	require.EqualValues(t, 9999<<10, parseRollup(text, "Rss:"))
	require.Zero(t, parseRollup([]byte("Pss: lots kB\n"), "Pss:"))
	require.Zero(t, parseRollup(nil, "Pss:"))
}
