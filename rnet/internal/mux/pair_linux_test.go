package mux

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/softcm"
	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft"
)

// carrier says over what two muxes are connected, and what they have.
type carrier struct {
	device     string // the software HCA if empty
	ringSize   uint32
	slots      uint32 // receives for data, link.DefaultSlots if 0
	window     uint32
	poller     *Poller // of the accepting end
	dialPoller *Poller // of the side that dials

	sessionWindow uint32
}

var (
	overSoft = carrier{}
	// overNarrow has the smallest ring and window: all kinds of credit run out all the
	// time.
	overNarrow = carrier{ringSize: link.MinRing, window: MinWindow}
)

// wireLike are the devices where what is posted is on its way, not there: with
// immediates, and without.
var wireLike = []string{soft.TestDeviceName, soft.TestNoImmName}

// end is a mux of a pair, and its user.
type end struct {
	*Mux
	conn   rcm.Conn
	opened chan *Stream  // by the peer
	left   chan struct{} // sent to by Leaving
	gone   chan struct{} // closed when nothing uses the device any more
}

func (e *end) Incoming() Incoming { return &opened{end: e} }
func (e *end) Served()            {}
func (e *end) Failed(error)       {}
func (e *end) Ended()             { e.conn.Disconnect() }

// open opens a stream.
func (e *end) open() (*Stream, error) {
	st := new(Stream)
	return st, e.Open(st)
}

// openWhenTold is open, but waits where the peer has not said yet what another stream is called.
func (e *end) openWhenTold(t testing.TB) *Stream {
	t.Helper()
	st, err := e.open()
	for errors.Is(err, ErrNoSlot) {
		freed := e.AwaitSlot()
		if st, err = e.open(); errors.Is(err, ErrNoSlot) {
			hang.Receive(t, freed, "an address for another stream")
		}
	}
	require.NoError(t, err)
	return st
}

// opened is a stream that the peer has opened.
type opened struct {
	st  Stream
	end *end
}

func (o *opened) Stream() *Stream { return &o.st }
func (o *opened) Accept() bool    { o.end.opened <- &o.st; return true }

func (e *end) Leaving() {
	select {
	case e.left <- struct{}{}:
	default:
	}
}
func (e *end) Give([]SlotAddrs) {}
func (e *end) Take(want, _ int) (netip.AddrPort, int) {
	return netip.MustParseAddrPort("127.0.0.1:1024"), want
}

// mostStreams is how many streams of a pair nobody need have taken.
const mostStreams = 4096

// make makes an end without a connection.
func (k carrier) make(t testing.TB, dev *verbs.Context, cfg Config) *end {
	e := &end{opened: make(chan *Stream, mostStreams), left: make(chan struct{}, 1), gone: make(chan struct{})}
	cfg.Sizes = Sizes{Window: cmp.Or(k.window, 512<<10), SessionWindow: cmp.Or(k.sessionWindow, 16<<20), Streams: mostStreams}
	e.Mux = New(cfg, e)
	l, err := link.New(link.Config{
		Device: dev, Release: func() { close(e.gone) }, RingSize: cmp.Or(k.ringSize, 1<<20), Slots: cmp.Or(k.slots, link.DefaultSlots), Send: e.SendLock(),
	}, e.Mux)
	require.NoError(t, err)
	e.Use(l)
	return e
}

// live lets an end live on its connection.
func (e *end) live(ctx context.Context, conn rcm.Conn, private []byte) error {
	e.conn = conn
	if private != nil {
		if err := e.Learn(private); err != nil {
			return err
		}
	}
	e.SetAddrs(conn.LocalAddr(), conn.RemoteAddr())
	if !e.Config().Dialed {
		if err := e.AwaitPeer(ctx, conn.Err); err != nil {
			return err
		}
	}
	if err := e.Greet(ctx, conn.Err); err != nil {
		return err
	}
	e.Start()
	return nil
}

// pair returns two muxes that are connected. They end with the test.
func (k carrier) pair(t testing.TB) (dialed, accepted *end) {
	t.Helper()
	name := cmp.Or(k.device, soft.DeviceName)
	dev, err := verbs.Open(name)
	require.NoError(t, err)
	t.Cleanup(func() { dev.Close() })
	dialed = k.make(t, dev, Config{Dialed: true, Poller: k.dialPoller})
	accepted = k.make(t, dev, Config{Poller: k.poller})
	tcp, err := net.Listen("tcp", "127.0.0.1:0") // its port is nobody else's
	require.NoError(t, err)
	defer tcp.Close()
	at := netip.MustParseAddrPort(tcp.Addr().String())
	fabric := softcm.New(softcm.Config{Device: name})
	ln, err := fabric.Listen(at, rcm.ListenConfig{})
	require.NoError(t, err)
	defer ln.Close()
	ctx, cancel := context.WithTimeout(t.Context(), hang.Time)
	defer cancel()
	var acceptErr error
	var work sync.WaitGroup
	work.Go(func() {
		acceptErr = func() error {
			req, err := ln.Accept(ctx)
			if err != nil {
				return err
			}
			if err := accepted.Learn(req.PrivateData()); err != nil {
				return err
			}
			conn, err := req.Accept(ctx, accepted.Link().QP(), accepted.Link().ConnParam(accepted.Hello()))
			if err != nil {
				return err
			}
			return accepted.live(ctx, conn, nil)
		}()
	})
	route, err := fabric.Resolve(ctx, at)
	require.NoError(t, err)
	conn, err := route.Connect(ctx, dialed.Link().QP(), dialed.Link().ConnParam(dialed.Hello()))
	require.NoError(t, err)
	require.NoError(t, dialed.live(ctx, conn, conn.PrivateData()))
	work.Wait()
	require.NoError(t, acceptErr)
	t.Cleanup(func() {
		dialed.Fail(net.ErrClosed)
		accepted.Fail(net.ErrClosed)
		for _, e := range []*end{dialed, accepted} {
			hang.Start(t, func() { <-e.gone })() // ended by the engine
		}
	})
	return dialed, accepted
}

// open opens a stream and takes it at the other end.
func open(t testing.TB, dialed, accepted *end) (c, s *Stream) {
	t.Helper()
	c = dialed.openWhenTold(t)
	hang.Start(t, func() { s = <-accepted.opened })() // ended by OPEN
	return c, s
}

func overEach(t *testing.T, devices []string, f func(t *testing.T, device string)) {
	for _, device := range devices {
		t.Run(fmt.Sprint("over ", device), func(t *testing.T) { f(t, device) })
	}
}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }

// patternOf returns n bytes of a stream's content, from a position on.
func patternOf(id uint32, at, n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte((at+i)*31>>3) ^ byte(id*7+uint32(at+i)>>8)
	}
	return p
}

// stopPolling keeps a mux from taking in what arrives. What it returns ends that.
func stopPolling(t testing.TB, m *Mux) (goOn func()) {
	stopped, end := make(chan struct{}), make(chan struct{})
	await := hang.Start(t, func() {
		for !m.pollLock.Do(func() { // somebody else may have the lock
			close(stopped)
			<-end // ended by goOn
		}) {
			time.Sleep(time.Millisecond)
		}
	})
	<-stopped
	return func() {
		close(end)
		await()
	}
}

// nobodyIsAwake fails t if a writer of the mux was woken from the queue and has not
// come back. There must be none that sends.
func nobodyIsAwake(t testing.TB, m *Mux) {
	t.Helper()
	m.out.mu.Lock()
	defer m.out.mu.Unlock()
	require.Zero(t, m.out.awake)
	require.Zero(t, m.out.promised)
	require.True(t, m.out.room.empty())
}
