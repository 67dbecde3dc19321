package rcm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

// serve accepts connections over a device and answers each number with the
// next, until standard input ends.
func serve(args []string) error {
	l, err := fabricOn(args[0]).Listen(netip.MustParseAddrPort(args[1]), ListenConfig{})
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
	s, err := openSide(r.Device())
	if err != nil {
		return err
	}
	qp, err := s.newQP()
	if err != nil {
		return err
	}
	c, err := r.Accept(context.Background(), qp, ConnParam{Prepare: s.receive, PrivateData: []byte("served")})
	if err != nil {
		return err
	}
	number, _, err := s.hear()
	if err != nil {
		return err
	}
	if err := tell(qp, number+1); err != nil {
		return err
	}
	<-c.Disconnected() // ends with the dialer's DREQ or death
	return errors.Join(c.Disconnect(), qp.Close(), s.close())
}

// connectAndWait dials over a device and keeps the connection until standard
// input ends.
func connectAndWait(args []string) error {
	r, err := fabricOn(args[0]).Resolve(context.Background(), netip.MustParseAddrPort(args[1]))
	if err != nil {
		return err
	}
	s, err := openSide(r.Device())
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

// dial connects to addr in another process and has one number answered.
func (f *testFabric) dial(ctx context.Context, s *side, addr netip.AddrPort) error {
	r, err := f.Resolve(ctx, addr)
	if err != nil {
		return err
	}
	qp, err := s.newQP()
	if err != nil {
		return errors.Join(err, r.Close())
	}
	defer qp.Close()
	c, err := r.Connect(ctx, qp, ConnParam{Prepare: s.receive})
	if err != nil {
		return err
	}
	defer c.Disconnect()
	if got := string(c.PrivateData()); !strings.HasPrefix(got, "served") {
		return fmt.Errorf("private data %q", got)
	}
	if err := tell(qp, 41); err != nil {
		return err
	}
	number, _, err := s.hear()
	if err != nil {
		return err
	}
	if number != 42 {
		return fmt.Errorf("answer %d", number)
	}
	return nil
}

func TestProcessesConnect(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *testFabric) {
		addr := f.addr(t)
		startChild(t, 0, "serve", f.device, addr.String())
		require.NoError(t, f.dial(t.Context(), f.newSide(t), addr))
	})
}

func TestManyDialAtOnce(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *testFabric) {
		addr := f.addr(t)
		startChild(t, 0, "serve", f.device, addr.String())
		results := make(chan error)
		dialers := 32
		if f.iwarp {
			dialers = 4 // siw of 6.1 frees its listener too soon when many come at once
		}
		for range dialers {
			s := f.newSide(t)
			go func() {
				err := f.dial(t.Context(), s, addr)
				if f.iwarp && errors.Is(err, ErrTimeout) {
					// siw loses a handshake now and then.
					err = f.dial(t.Context(), s, addr)
				}
				results <- err
			}()
		}
		for range dialers {
			require.NoError(t, <-results) // each ends with its answer
		}
	})
}

// endOfAPeer is how the death of a peer's process looks: the kernel says
// goodbye for it, the software HCA sees a hang-up.
func (f *testFabric) endOfAPeer() error {
	if f.kernel {
		return ErrDisconnected
	}
	return syscall.ECONNRESET
}

func TestAKilledAcceptorIsSeenAtOnce(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *testFabric) {
		addr := f.addr(t)
		c := startChild(t, 0, "serve", f.device, addr.String())
		qp := f.newSide(t).qp(t)
		conn, err := f.resolve(t, addr).Connect(t.Context(), qp, ConnParam{})
		require.NoError(t, err)
		if !f.kernel {
			require.Equal(t, c.cmd.Process.Pid, conn.Peer().PID)
		}
		require.NoError(t, c.cmd.Process.Kill())
		<-conn.Disconnected() // ends with the hang-up
		require.ErrorIs(t, conn.Err(), f.endOfAPeer())
		require.NoError(t, conn.Disconnect())
	})
}

func TestAKilledDialerIsSeenAtOnce(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *testFabric) {
		addr := f.addr(t)
		l := f.listen(t, addr, ListenConfig{})
		accepted := make(chan Conn, 1)
		qp := f.newSide(t).qp(t)
		go func() {
			r, err := l.Accept(t.Context())
			if err != nil {
				return
			}
			if c, err := r.Accept(t.Context(), qp, ConnParam{}); err == nil {
				accepted <- c
			}
		}()
		c := startChild(t, 0, "dial", f.device, addr.String())
		conn := <-accepted // ends with the handshake
		require.NoError(t, c.cmd.Process.Kill())
		<-conn.Disconnected() // ends with the hang-up
		require.ErrorIs(t, conn.Err(), f.endOfAPeer())
		require.NoError(t, conn.Disconnect())
	})
}

func TestAnAcceptorKilledBeforeItAnswersEndsConnect(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *testFabric) {
		addr := f.addr(t)
		c := startChild(t, 0, "squat", f.device, addr.String()) // listens, but does not accept
		dialed := f.dialAsync(t, t.Context(), addr, ConnParam{})
		require.NoError(t, c.cmd.Process.Kill())
		err := <-dialed // ends with the hang-up or the kernel's reject
		require.True(t, errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.ECONNREFUSED), err)
	})
}

func TestAThousandConnectionsLeaveNothing(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *testFabric) {
		addr := f.addr(t)
		dialer, acceptor := f.newSide(t), f.newSide(t)
		l := f.listen(t, addr, ListenConfig{})
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
			r := f.resolve(t, addr)
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
		descriptors, objects := openDescriptors(), f.objects(t)
		count := 1000
		if f.kernel && f.host.Is6() {
			count = 100 // a guest without hardware support takes 10 ms for each
		}
		for range count {
			connect()
		}
		require.Eventually(t, func() bool { return openDescriptors() <= descriptors && f.objects(t) == objects },
			time.Minute, 10*time.Millisecond, "%d descriptors and %q before", descriptors, objects)
		require.NoError(t, l.Close())
		require.NoError(t, <-stopped) // ends with Close
	})
}

// objects counts what the kernel holds on the device: its QPs, connection ids
// and the rest.
func (f *testFabric) objects(t testing.TB) string {
	if !f.kernel {
		return ""
	}
	out, err := exec.Command("rdma", "resource", "show", f.device).CombinedOutput()
	require.NoError(t, err, string(out))
	return string(out)
}

// BenchmarkConnect is what a connection costs from Resolve to Disconnect,
// both sides in this process.
func BenchmarkConnect(b *testing.B) {
	for _, f := range benchFabrics(b) {
		b.Run(f.title(), func(b *testing.B) { benchmarkConnect(b, f) })
	}
}

// benchFabrics is overFabrics for benchmarks.
func benchFabrics(b *testing.B) []*testFabric {
	list := []*testFabric{onSoft()}
	if os.Getenv(devicesVariable) != "" {
		list = append(list, kernelFabrics(b)...)
	}
	return list
}

func benchmarkConnect(b *testing.B, f *testFabric) {
	addr := f.addr(b)
	dialer, acceptor := f.newSide(b), f.newSide(b)
	l := f.listen(b, addr, ListenConfig{})
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
		r, err := f.Resolve(b.Context(), addr)
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
