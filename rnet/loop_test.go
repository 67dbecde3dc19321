package rnet

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/rnet/internal/handloop"
	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
	"github.com/seed-b9b531af/ramjet/rnet/internal/loop"
	"github.com/seed-b9b531af/ramjet/rnet/internal/mux"
)

// soon is how long a test waits where a wake-up may have been lost: a keepalive
// would make up for it later.
const soon = link.KeepAlivePeriod / 3

// handLoop is an event loop that a test runs by hand.
type handLoop struct {
	handloop.Loop[*mux.LoopStream]
	poller  *mux.Poller
	address string // where it listens
}

type sink = handloop.Sink[*mux.LoopStream]

func (l *handLoop) Accept(s *mux.LoopStream) mux.Sink { return &sink{Loop: &l.Loop, Stream: s} }

// newHandLoop makes a loop, which is closed with the test.
func newHandLoop(t testing.TB, k carrier) *handLoop {
	t.Helper()
	l := new(handLoop)
	set, err := k.listenConfig().settings()
	require.NoError(t, err)
	l.poller = mux.NewPoller(l, set.Session.Profile)
	l.Poller = l.poller
	t.Cleanup(l.poller.Close)
	return l
}

func noWork() bool { return false }

// onHandLoop makes a loop, and streams to it that are open on both sides.
func onHandLoop(t testing.TB, k carrier, streams int) (l *handLoop, dialed []*Conn) {
	t.Helper()
	t.Cleanup(k.install())
	l = newHandLoop(t, k)
	tcp, err := net.Listen("tcp", k.anyPort())
	require.NoError(t, err)
	t.Cleanup(func() { tcp.Close() })
	request := loop.Listen{Place: func(net.Addr) *mux.Poller { return l.poller }}
	ln, err := k.listenConfig().Listen(request.Context(t.Context()), "tcp", tcp.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	for range streams {
		c, err := k.dialer().Dial("tcp", tcp.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		dialed = append(dialed, c.(*Conn))
		// One by one: streams of different sessions come in any order.
		l.Until(t, "the stream is open", func() bool { return len(l.Sinks) == len(dialed) })
	}
	l.address = tcp.Addr().String()
	return l, dialed
}

func TestALoopIsRungOnceItHasArmed(t *testing.T) {
	over(t, softCarriers, func(t *testing.T, k carrier) {
		if k.dedicated {
			t.Skip("several sessions wake the loop by themselves")
		}
		l, dialed := onHandLoop(t, k, 2)
		for round := range 20 {
			l.Sleeps(t)
			c := dialed[round%2]
			_, err := c.Write([]byte{byte(round)})
			require.NoError(t, err)
			hang.Eventually(t, "the loop is woken", func() bool { return l.Wakes.Load() > 0 })
			l.Until(t, "the byte is there", func() bool {
				got := l.Sinks[round%2].Got
				return len(got) > 0 && got[len(got)-1] == byte(round)
			})
		}
	})
}

func TestAnArrivalEndsTheSleepOfALoop(t *testing.T) {
	l, dialed := onHandLoop(t, overSoft, 1)
	got := 0
	for range 20 {
		var over atomic.Bool
		written := make(chan struct{})
		go func() {
			defer close(written)
			for { // the engine may take the first away
				time.Sleep(time.Millisecond)
				dialed[0].Write([]byte("x"))
				if over.Load() {
					return
				}
			}
		}()
		for range 32 {
			l.poller.Slept(0) // after long sleeps it would not sleep on its thread
		}
		end := time.Now().Add(hang.Time)
		require.True(t, l.poller.Sleep(end, noWork))
		require.True(t, time.Now().Before(end), "it slept on")
		over.Store(true)
		<-written
		l.Until(t, "a byte is there", func() bool { return len(l.Sinks[0].Got) > got })
		got = len(l.Sinks[0].Got)
	}
}

func TestALoopWithSeveralSessionsDoesNotSleepOnOne(t *testing.T) {
	l, _ := onHandLoop(t, carrier{name: "soft-dedicated", transport: Soft, dedicated: true}, 2)
	require.Equal(t, 2, l.poller.Sessions())
	require.False(t, l.poller.Sleep(time.Now().Add(hang.Time), noWork))
}

// Streams that a loop has dialed and never attached (they lost a race) wait in
// Close for their ends to go. Meanwhile the loop alone takes in what comes for
// others.
func TestACloseThatLingersLeavesTheSessionToItsLoop(t *testing.T) {
	const rounds = 10
	k := carrier{name: "small ring", transport: Soft, limits: Limits{RingSize: minRingSize, Window: 4 * minRingSize}}
	far, _ := onHandLoop(t, k, 0)
	l := newHandLoop(t, k)
	dial := func() *Conn {
		request := loop.Dial{Poller: l.poller}
		c, err := k.dialer().DialContext(request.Context(t.Context()), "tcp", far.address)
		require.NoError(t, err)
		return c.(*Conn)
	}
	used := &sink{Loop: &l.Loop}
	l.poller.Attach(&dial().st, func(st *mux.LoopStream) mux.Sink { used.Stream = st; return used })
	var lost []*Conn
	for range rounds {
		lost = append(lost, dial())
	}
	far.Until(t, "all are open", func() bool { return len(far.Sinks) == 1+rounds })

	// Nothing is released at the other end: the end of a stream cannot go.
	for n := 1; n > 0; {
		var err error
		n, err = used.Stream.Write([]byte("x"))
		require.NoError(t, err)
	}
	var closing sync.WaitGroup
	for round, c := range lost {
		l.Sleeps(t)
		require.NoError(t, c.SetLinger(int(hang.Time/time.Second)))
		closing.Go(func() { c.Close() }) // ended by the departure of the end
		time.Sleep(200 * time.Microsecond)
		_, err := far.Sinks[0].Stream.Write([]byte("x"))
		require.NoError(t, err)
		end := time.Now().Add(soon)
		hang.Eventually(t, "the loop is woken", func() bool { return l.Wakes.Load() > 0 || time.Now().After(end) })
		require.True(t, time.Now().Before(end), "the loop is not woken")
		l.Until(t, "the byte is there", func() bool { return len(used.Got) > round })
	}
	ends := func() (n int) {
		for _, k := range far.Sinks {
			n += len(k.Errs)
		}
		return n
	}
	far.Until(t, "the ends are told", func() bool {
		l.poller.Poll()
		return ends() == rounds
	})
	closing.Wait()
}

// A session can fail, and go back to its engine, between a dial and Attach.
func TestAttachFindsASessionThatHasGone(t *testing.T) {
	over(t, softCarriers, func(t *testing.T, k carrier) {
		far, _ := onHandLoop(t, k, 0)
		l := newHandLoop(t, k)
		request := loop.Dial{Poller: l.poller}
		conn, err := k.dialer().DialContext(request.Context(t.Context()), "tcp", far.address)
		require.NoError(t, err)
		c := conn.(*Conn)
		c.s.mux.Fail(io.ErrUnexpectedEOF)
		l.Until(t, "the loop hands the session back", func() bool { return l.poller.Sessions() == 0 })
		<-c.s.mux.Done() // ended by the engine
		require.False(t, l.poller.Attach(request.Stream, func(*mux.LoopStream) mux.Sink {
			t.Error("a stream of a session that has gone gets a sink")
			return &sink{Loop: &l.Loop}
		}))
		require.NoError(t, c.Close())
	})
}

func TestAWriteOnALoopTakesWhatThereIsRoomFor(t *testing.T) {
	over(t, softCarriers, func(t *testing.T, k carrier) {
		l, dialed := onHandLoop(t, k, 1)
		data := make([]byte, 3<<20)
		for i := range data {
			data[i] = byte(i * 31 >> 3)
		}
		at := l.Sinks[0]
		n, err := at.Stream.Write(data)
		require.NoError(t, err)
		require.Less(t, n, len(data))
		read := make(chan []byte, 1)
		go func() {
			got := make([]byte, len(data))
			io.ReadFull(dialed[0], got)
			read <- got
		}()
		for n < len(data) {
			seen := at.Writables
			l.Until(t, "there is room again", func() bool { return at.Writables > seen })
			m, err := at.Stream.Write(data[n:])
			require.NoError(t, err)
			n += m
		}
		require.Equal(t, data, <-read)
	})
}

func TestEachStreamOfALoopIsToldOfItsEnd(t *testing.T) {
	ends := map[string]struct {
		end  func(c *Conn)
		want error
	}{
		"close":      {func(c *Conn) { c.Close() }, io.EOF},
		"half close": {func(c *Conn) { c.CloseWrite() }, io.EOF},
		"reset":      {func(c *Conn) { c.SetLinger(0); c.Close() }, syscall.ECONNRESET},
		"session":    {func(c *Conn) { c.s.mux.Fail(io.ErrUnexpectedEOF) }, syscall.ECONNRESET},
	}
	over(t, softCarriers, func(t *testing.T, k carrier) {
		for name, test := range ends {
			t.Run(name, func(t *testing.T) {
				l, dialed := onHandLoop(t, k, 2)
				_, err := dialed[0].Write([]byte("last words"))
				require.NoError(t, err)
				if name == "session" { // on a network what is under way is lost
					l.Until(t, "they are there", func() bool { return len(l.Sinks[0].Got) > 0 })
				}
				test.end(dialed[0])
				l.Until(t, "the end is told", func() bool { return len(l.Sinks[0].Errs) > 0 })
				require.ErrorIs(t, l.Sinks[0].Errs[0], test.want)
				require.Len(t, l.Sinks[0].Errs, 1)
				if test.want == io.EOF {
					require.Equal(t, "last words", string(l.Sinks[0].Got))
				}
			})
		}
	})
}

// What the loop was not told of when it ended is reset, and its sessions end.
func TestSessionsOutliveTheirLoopInOrder(t *testing.T) {
	over(t, softCarriers, func(t *testing.T, k carrier) {
		l, dialed := onHandLoop(t, k, 3)
		for _, at := range l.Sinks[:2] {
			at.Stream.Close(false)
		}
		l.poller.Close()
		for _, c := range dialed[:2] {
			_, err := c.Read(make([]byte, 1))
			require.ErrorIs(t, err, io.EOF)
		}
		_, err := dialed[2].Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.ECONNRESET)
		require.Zero(t, l.poller.Sessions())
	})
}
