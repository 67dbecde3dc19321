package rnet

import (
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
	"github.com/seed-b9b531af/ramjet/rnet/internal/loop"
)

// soon is how long a test waits where a wake-up may have been lost: a keepalive
// would make up for it later.
const soon = link.KeepAlivePeriod / 3

// handLoop is an event loop that a test turns by hand: its goroutine is the
// loop's.
type handLoop struct {
	poller  loop.Poller
	address string // where it listens
	rings   atomic.Int32
	sinks   []*sink
	answer  bool          // what is readable is written back
	goOn    func(k *sink) // what a stream does that may write again
}

func (l *handLoop) Ring() { l.rings.Add(1) }

func (l *handLoop) Accept(s loop.Stream) loop.Sink { return &sink{l: l, stream: s} }

// sink keeps what it is told.
type sink struct {
	l        *handLoop
	stream   loop.Stream
	got      []byte
	writable int
	ended    []error
	then     func() // comes after what was readable, unless it is nil
}

func (k *sink) Opened() { k.l.sinks = append(k.l.sinks, k) }

func (k *sink) Readable(p []byte) {
	k.got = append(k.got, p...)
	if k.l.answer {
		k.stream.Write(p)
	}
	if k.then != nil {
		k.then()
	}
}

func (k *sink) Buffered() (int, int) { return 0, 0 }

func (k *sink) Writable() {
	k.writable++
	if k.l.goOn != nil {
		k.l.goOn(k)
	}
}

func (k *sink) Ended(err error) { k.ended = append(k.ended, err); k.stream.Close(false) }

// until polls until f says so.
func (l *handLoop) until(t testing.TB, what string, f func() bool) {
	t.Helper()
	eventually(t, what, func() bool {
		l.poller.Poll()
		return f()
	})
}

// sleeps polls until there is nothing more to do.
func (l *handLoop) sleeps(t testing.TB) {
	t.Helper()
	l.until(t, "the loop sleeps", func() bool { return l.poller.Arm() })
	l.rings.Store(0)
}

// newHandLoop makes a loop, which is closed with the test.
func newHandLoop(t testing.TB, k carrier) *handLoop {
	t.Helper()
	l := new(handLoop)
	var err error
	l.poller, err = loop.NewPoller(l, k.listenConfig())
	require.NoError(t, err)
	t.Cleanup(l.poller.Close)
	return l
}

// onHandLoop makes a loop, and streams to it that are open on both sides.
func onHandLoop(t testing.TB, k carrier, streams int) (l *handLoop, dialed []*Conn) {
	t.Helper()
	t.Cleanup(k.install())
	l = newHandLoop(t, k)
	tcp, err := net.Listen("tcp", k.anyPort())
	require.NoError(t, err)
	t.Cleanup(func() { tcp.Close() })
	ln, err := loop.Listen(k.listenConfig(), "tcp", tcp.Addr().(*net.TCPAddr), func(net.Addr) loop.Poller { return l.poller })
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	for range streams {
		c, err := k.dialer().Dial("tcp", tcp.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		dialed = append(dialed, c.(*Conn))
		// One by one: streams of different sessions come in any order.
		l.until(t, "the stream is open", func() bool { return len(l.sinks) == len(dialed) })
	}
	l.address = tcp.Addr().String()
	return l, dialed
}

func TestALoopIsRungOnceItHasArmed(t *testing.T) {
	over(t, softCarriers, func(t *testing.T, k carrier) {
		if k.dedicated {
			t.Skip("several sessions ring by themselves")
		}
		l, dialed := onHandLoop(t, k, 2)
		for round := range 20 {
			l.sleeps(t)
			c := dialed[round%2]
			_, err := c.Write([]byte{byte(round)})
			require.NoError(t, err)
			eventually(t, "the bell rings", func() bool { return l.rings.Load() > 0 })
			l.until(t, "the byte is there", func() bool {
				got := l.sinks[round%2].got
				return len(got) > 0 && got[len(got)-1] == byte(round)
			})
		}
	})
}

func TestALoopThatDozesIsWokenByWhatArrives(t *testing.T) {
	l, dialed := onHandLoop(t, overSoft, 1)
	got := 0
	for range 20 {
		var over atomic.Bool
		written := make(chan struct{})
		go func() { // ended by the end of the Doze
			defer close(written)
			for { // the engine may take the first away
				time.Sleep(time.Millisecond)
				dialed[0].Write([]byte("x"))
				if over.Load() {
					return
				}
			}
		}()
		end := time.Now().Add(hangTime)
		require.True(t, l.poller.Doze(end))
		require.True(t, time.Now().Before(end), "it slept on")
		over.Store(true)
		<-written
		l.until(t, "a byte is there", func() bool { return len(l.sinks[0].got) > got })
		got = len(l.sinks[0].got)
	}
}

func TestALoopThatDozesIsWokenByRouse(t *testing.T) {
	l, _ := onHandLoop(t, overSoft, 1)
	l.sleeps(t)
	l.sinks[0].stream.(*loopStream).m.warm()
	l.poller.Poll()
	var over atomic.Bool
	roused := make(chan struct{})
	go func() { // ended by the end of the Doze
		defer close(roused)
		for !over.Load() {
			l.poller.Rouse()
			time.Sleep(time.Millisecond)
		}
	}()
	end := time.Now().Add(hangTime)
	require.True(t, l.poller.Doze(end))
	over.Store(true)
	<-roused
	require.True(t, time.Now().Before(end))
}

func TestALoopWithSeveralSessionsDoesNotDoze(t *testing.T) {
	l, _ := onHandLoop(t, carrier{name: "soft-dedicated", transport: Soft, dedicated: true}, 2)
	require.Equal(t, 2, l.poller.Sessions())
	require.False(t, l.poller.Doze(time.Now().Add(hangTime)))
}

// More streams want to send than the ring has room for. What comes back of it
// wakes as many as have room, not all of them for each bit, and every turn that
// is given comes back.
func TestCreditWakesAsManyStreamsAsHaveRoom(t *testing.T) {
	const streams, messages, size = 800, 8, 256
	l, dialed := onHandLoop(t, overNarrow, streams)
	var readers sync.WaitGroup
	var whole atomic.Int32
	for _, c := range dialed {
		readers.Go(func() { // ended by the bytes
			if n, _ := io.CopyN(io.Discard, c, messages*size); n == messages*size {
				whole.Add(1)
			}
		})
	}
	message := make([]byte, size)
	left := make([]int, streams)
	s := l.sinks[0].stream.(*loopStream).m
	most := 0
	for i, k := range l.sinks {
		left[i], k.writable = messages*size, 1
	}
	l.until(t, "everything is sent", func() bool {
		s.txMu.Lock()
		most = max(most, s.awake)
		s.txMu.Unlock()
		all := true
		for i, k := range l.sinks {
			for left[i] > 0 && k.writable > 0 {
				n, err := k.stream.Write(message)
				require.NoError(t, err)
				left[i] -= n
				if n < size {
					k.writable = 0
				}
			}
			all = all && left[i] == 0
		}
		return all
	})
	readers.Wait()
	require.EqualValues(t, streams, whole.Load())
	require.Greater(t, most, 1, "they had to wait")
	require.LessOrEqual(t, most, minRingSize/size)
	require.Zero(t, s.awake)
	require.Zero(t, s.promised)
}

func TestAnswersOfABatchShareMessages(t *testing.T) {
	const streams = 32
	l, dialed := onHandLoop(t, overSoft, streams)
	l.answer = true
	s := l.sinks[0].stream.(*loopStream).m
	s.slow = false // the batches of the set-up may have taken long
	before := s.link.Mark().Requests
	for _, c := range dialed {
		_, err := c.Write(fmt.Append(nil, "request ", c.st.id))
		require.NoError(t, err)
	}
	l.until(t, "all requests are there", func() bool {
		for _, k := range l.sinks {
			if len(k.got) == 0 {
				return false
			}
		}
		return true
	})
	require.LessOrEqual(t, s.link.Mark().Requests-before, uint64(streams/corkFrames+2))
	for _, c := range dialed {
		want := fmt.Append(nil, "request ", c.st.id)
		got := make([]byte, len(want))
		_, err := io.ReadFull(c, got)
		require.NoError(t, err)
		require.Equal(t, string(want), string(got))
	}
}

// What other connections were answered before goes although the handler runs.
func TestAHandlerThatTakesLongKeepsBackNoAnswers(t *testing.T) {
	const streams, busy = 8, 5
	l, dialed := onHandLoop(t, overSoft, streams)
	l.answer = true
	l.sinks[0].stream.(*loopStream).m.slow = false
	answered := make(chan error, 1)
	l.sinks[busy].then = func() {
		select { // ended by the answers, or the clock
		case err := <-answered:
			require.NoError(t, err)
		case <-time.After(soon):
			t.Error("the answers wait for the handler")
		}
	}
	for _, c := range dialed {
		_, err := c.Write([]byte("x"))
		require.NoError(t, err)
	}
	go func() { // ended by the answers, or the end of the streams
		for _, c := range dialed[:busy] {
			if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
				answered <- err
				return
			}
		}
		answered <- nil
	}()
	l.until(t, "all requests are there", func() bool { return len(l.sinks[streams-1].got) > 0 })
}

func TestFlushSendsWhatIsGathered(t *testing.T) {
	const streams = 6
	l, dialed := onHandLoop(t, overSoft, streams)
	l.answer = true
	s := l.sinks[0].stream.(*loopStream).m
	s.slow = false
	gathered := func() int {
		s.txMu.Lock()
		defer s.txMu.Unlock()
		return s.link.Gathered()
	}
	last := l.sinks[streams-1]
	last.then = func() {
		last.stream.Flush()
		require.Zero(t, gathered())
	}
	for _, c := range dialed {
		_, err := c.Write([]byte("x"))
		require.NoError(t, err)
	}
	l.until(t, "all requests are there", func() bool { return len(last.got) > 0 })
	for _, c := range dialed {
		_, err := io.ReadFull(c, make([]byte, 1))
		require.NoError(t, err)
	}
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
		c, err := loop.Dial(t.Context(), k.dialer(), "tcp", far.address, l.poller)
		require.NoError(t, err)
		return c.(*Conn)
	}
	used := &sink{l: l}
	l.poller.Attach(dial(), func(st loop.Stream) loop.Sink { used.stream = st; return used })
	var lost []*Conn
	for range rounds {
		lost = append(lost, dial())
	}
	far.until(t, "all are open", func() bool { return len(far.sinks) == 1+rounds })

	// Nothing is released at the other end: the end of a stream cannot go.
	for n := 1; n > 0; {
		var err error
		n, err = used.stream.Write([]byte("x"))
		require.NoError(t, err)
	}
	var closing sync.WaitGroup
	for round, c := range lost {
		l.sleeps(t)
		require.NoError(t, c.SetLinger(int(hangTime/time.Second)))
		closing.Go(func() { c.Close() }) // ended by the departure of the end
		time.Sleep(200 * time.Microsecond)
		_, err := far.sinks[0].stream.Write([]byte("x"))
		require.NoError(t, err)
		end := time.Now().Add(soon)
		eventually(t, "the loop is rung", func() bool { return l.rings.Load() > 0 || time.Now().After(end) })
		require.True(t, time.Now().Before(end), "the loop is not rung")
		l.until(t, "the byte is there", func() bool { return len(used.got) > round })
	}
	ends := func() (n int) {
		for _, k := range far.sinks {
			n += len(k.ended)
		}
		return n
	}
	far.until(t, "the ends are told", func() bool {
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
		conn, err := loop.Dial(t.Context(), k.dialer(), "tcp", far.address, l.poller)
		require.NoError(t, err)
		c := conn.(*Conn)
		c.s.mux.Fail(io.ErrUnexpectedEOF)
		l.until(t, "the loop hands the session back", func() bool { return l.poller.Sessions() == 0 })
		<-c.s.mux.done // ended by the engine
		require.Nil(t, l.poller.Attach(c, func(loop.Stream) loop.Sink {
			t.Error("a stream of a session that has gone gets a sink")
			return &sink{l: l}
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
		at := l.sinks[0]
		n, err := at.stream.Write(data)
		require.NoError(t, err)
		require.Less(t, n, len(data))
		read := make(chan []byte, 1)
		go func() { // ended by the last byte
			got := make([]byte, len(data))
			io.ReadFull(dialed[0], got)
			read <- got
		}()
		for n < len(data) {
			seen := at.writable
			l.until(t, "there is room again", func() bool { return at.writable > seen })
			m, err := at.stream.Write(data[n:])
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
					l.until(t, "they are there", func() bool { return len(l.sinks[0].got) > 0 })
				}
				test.end(dialed[0])
				l.until(t, "the end is told", func() bool { return len(l.sinks[0].ended) > 0 })
				require.ErrorIs(t, l.sinks[0].ended[0], test.want)
				require.Len(t, l.sinks[0].ended, 1)
				if test.want == io.EOF {
					require.Equal(t, "last words", string(l.sinks[0].got))
				}
			})
		}
	})
}

// What the loop was not told of when it ended is reset, and its sessions end.
func TestSessionsOutliveTheirLoopInOrder(t *testing.T) {
	over(t, softCarriers, func(t *testing.T, k carrier) {
		l, dialed := onHandLoop(t, k, 3)
		for _, at := range l.sinks[:2] {
			at.stream.Close(false)
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
