package rcm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

// serve accepts connections and answers each immediate with the next number,
// until standard input ends.
func serve(args []string) error {
	l, err := Soft().Listen(netip.MustParseAddrPort(args[0]), ListenConfig{})
	if err != nil {
		return err
	}
	var connections sync.WaitGroup
	connections.Go(func() {
		for {
			r, err := l.Accept(context.Background())
			if err != nil {
				return // closed
			}
			connections.Go(func() {
				if err := answer(r); err != nil {
					fmt.Fprintln(os.Stderr, "serve:", err)
				}
			})
		}
	})
	untilStdinEnds()
	l.Close()
	connections.Wait() // ends when the dialers have gone
	return nil
}

func answer(r Request) error {
	s, err := openSide()
	if err != nil {
		return err
	}
	qp, err := s.newQP()
	if err != nil {
		return err
	}
	c, err := r.Accept(context.Background(), qp, ConnParam{Prepare: oneReceive, PrivateData: []byte("served")})
	if err != nil {
		return err
	}
	wcs, err := s.complete(1)
	if err != nil {
		return err
	}
	if err := tell(qp, wcs[0].Imm+1); err != nil {
		return err
	}
	<-c.Disconnected() // ends with the dialer's DREQ or death
	return errors.Join(c.Disconnect(), qp.Close(), s.close())
}

// connectAndWait dials and keeps the connection until standard input ends.
func connectAndWait(args []string) error {
	r, err := Soft().Resolve(context.Background(), netip.MustParseAddrPort(args[0]))
	if err != nil {
		return err
	}
	s, err := openSide()
	if err != nil {
		return err
	}
	qp, err := s.newQP()
	if err != nil {
		return err
	}
	if _, err = r.Connect(context.Background(), qp, ConnParam{}); err != nil {
		return err
	}
	untilStdinEnds()
	return nil
}

// dial connects to addr in another process and has one immediate answered.
func dial(ctx context.Context, s *side, addr netip.AddrPort) error {
	r, err := Soft().Resolve(ctx, addr)
	if err != nil {
		return err
	}
	qp, err := s.newQP()
	if err != nil {
		return errors.Join(err, r.Close())
	}
	defer qp.Close()
	c, err := r.Connect(ctx, qp, ConnParam{Prepare: oneReceive})
	if err != nil {
		return err
	}
	defer c.Disconnect()
	if got := string(c.PrivateData()); got != "served" {
		return fmt.Errorf("private data %q", got)
	}
	if err := tell(qp, 41); err != nil {
		return err
	}
	wcs, err := s.complete(1)
	if err != nil {
		return err
	}
	if wcs[0].Imm != 42 {
		return fmt.Errorf("answer %d", wcs[0].Imm)
	}
	return nil
}

func TestProcessesConnect(t *testing.T) {
	addr := at("127.0.0.1", freePort(t))
	startChild(t, 0, "serve", addr.String())
	require.NoError(t, dial(t.Context(), newSide(t), addr))
}

func TestManyDialAtOnce(t *testing.T) {
	addr := at("::1", freePort(t))
	startChild(t, 0, "serve", addr.String())
	results := make(chan error)
	const dialers = 32
	for range dialers {
		s := newSide(t)
		go func() { results <- dial(t.Context(), s, addr) }()
	}
	for range dialers {
		require.NoError(t, <-results) // each ends with its answer
	}
}

func TestAKilledAcceptorIsSeenAtOnce(t *testing.T) {
	addr := at("127.0.0.1", freePort(t))
	c := startChild(t, 0, "serve", addr.String())
	qp := newSide(t).qp(t)
	r, err := Soft().Resolve(t.Context(), addr)
	require.NoError(t, err)
	conn, err := r.Connect(t.Context(), qp, ConnParam{})
	require.NoError(t, err)
	require.Equal(t, c.cmd.Process.Pid, conn.Peer().PID)
	require.NoError(t, c.cmd.Process.Kill())
	<-conn.Disconnected() // ends with the hang-up
	require.ErrorIs(t, conn.Err(), syscall.ECONNRESET)
	require.NoError(t, conn.Disconnect())
}

func TestAKilledDialerIsSeenAtOnce(t *testing.T) {
	addr := at("127.0.0.1", freePort(t))
	l := listen(t, addr, ListenConfig{})
	accepted := make(chan Conn, 1)
	qp := newSide(t).qp(t)
	go func() {
		r, err := l.Accept(t.Context())
		if err != nil {
			return
		}
		if c, err := r.Accept(t.Context(), qp, ConnParam{}); err == nil {
			accepted <- c
		}
	}()
	c := startChild(t, 0, "dial", addr.String())
	conn := <-accepted // ends with the handshake
	require.NoError(t, c.cmd.Process.Kill())
	<-conn.Disconnected() // ends with the hang-up
	require.ErrorIs(t, conn.Err(), syscall.ECONNRESET)
	require.NoError(t, conn.Disconnect())
}

func TestAnAcceptorKilledBeforeItAnswersEndsConnect(t *testing.T) {
	addr := at("127.0.0.1", freePort(t))
	c := startChild(t, 0, "squat", addr.String()) // listens, but does not accept
	dialed := dialAsync(t, t.Context(), addr, ConnParam{})
	require.NoError(t, c.cmd.Process.Kill())
	require.ErrorIs(t, <-dialed, syscall.ECONNRESET) // ends with the hang-up
}

func TestAThousandConnectionsLeaveNothing(t *testing.T) {
	addr := at("127.0.0.1", freePort(t))
	dialer, acceptor := newSide(t), newSide(t)
	l := listen(t, addr, ListenConfig{})
	accepted := make(chan Conn)
	qps := make(chan *verbs.QP, 1)
	stopped := make(chan error, 1)
	go func() {
		defer close(accepted)
		for {
			r, err := l.Accept(t.Context())
			if err != nil {
				stopped <- nil // closed below
				return
			}
			qp, err := acceptor.newQP()
			if err != nil {
				stopped <- err
				return
			}
			c, err := r.Accept(t.Context(), qp, ConnParam{})
			if err != nil {
				stopped <- err
				return
			}
			qps <- qp
			accepted <- c
		}
	}()
	connect := func() {
		r, err := Soft().Resolve(t.Context(), addr)
		require.NoError(t, err)
		qp, err := dialer.newQP()
		require.NoError(t, err)
		near, err := r.Connect(t.Context(), qp, ConnParam{})
		require.NoError(t, err)
		far, ok := <-accepted // ends with the handshake or the acceptor's end
		require.True(t, ok)
		require.NoError(t, near.Disconnect())
		<-far.Disconnected() // ends with the DREQ
		require.NoError(t, far.Disconnect())
		require.NoError(t, qp.Close())
		require.NoError(t, (<-qps).Close())
	}
	connect() // what a device makes once is there now
	descriptors := openDescriptors()
	for range 1000 {
		connect()
	}
	require.Eventually(t, func() bool { return openDescriptors() <= descriptors }, time.Minute, time.Millisecond,
		"%d descriptors before", descriptors)
	require.NoError(t, l.Close())
	require.NoError(t, <-stopped) // ends with Close
}

// BenchmarkConnect is what a connection costs from Resolve to Disconnect,
// both sides in this process.
func BenchmarkConnect(b *testing.B) {
	addr := at("127.0.0.1", freePort(b))
	dialer, acceptor := newSide(b), newSide(b)
	l := listen(b, addr, ListenConfig{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			r, err := l.Accept(b.Context())
			if err != nil {
				return // closed below
			}
			qp, err := acceptor.newQP()
			if err != nil {
				b.Error(err)
				return
			}
			c, err := r.Accept(b.Context(), qp, ConnParam{})
			if err != nil {
				b.Error(err)
				return
			}
			<-c.Disconnected() // ends with the DREQ
			c.Disconnect()
			qp.Close()
		}
	}()
	b.ReportAllocs()
	for b.Loop() {
		r, err := Soft().Resolve(b.Context(), addr)
		require.NoError(b, err)
		qp, err := dialer.newQP()
		require.NoError(b, err)
		c, err := r.Connect(b.Context(), qp, ConnParam{})
		require.NoError(b, err)
		c.Disconnect()
		qp.Close()
	}
	l.Close()
	<-ended
}

// BenchmarkResolveNobody is what a dial pays where nobody listens.
func BenchmarkResolveNobody(b *testing.B) {
	addr := at("127.0.0.1", freePort(b))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Soft().Resolve(b.Context(), addr); !errors.Is(err, ErrNoListener) {
			b.Fatal(err)
		}
	}
}
