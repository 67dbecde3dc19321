package rcm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What is seen of a peer whose process is killed, at each stage of a
// connection.

// listenMute takes one request, says so, and never answers it.
func listenMute(args []string) error {
	l, err := fabricOn(args[0]).Listen(netip.MustParseAddrPort(args[1]), ListenConfig{})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	if _, err := l.Accept(context.Background()); err != nil {
		return err
	}
	fmt.Println("asked")
	select {} // ends with the process
}

// dialMute sends a request and goes no further, whatever the answer.
func dialMute(args []string) error {
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
	p, err := ConnParam{}.complete(qp, MaxRequestData)
	if err != nil {
		return err
	}
	if err := r.(*kernelRoute).id.connect(p.forKernel(qp, readDepth{})); err != nil {
		return err
	}
	untilStdinEnds()
	return nil
}

// dialAndWait connects, however long the answer takes.
func dialAndWait(args []string) error {
	fmt.Println("ready")
	return connectAndWait(args)
}

func TestAnAcceptorKilledBeforeItAnswersEndsConnect(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *testFabric) {
		addr := f.addr(t)
		c := startChild(t, 0, "listenMute", f.device, addr.String())
		dialed := f.dialAsync(t, within(t), addr, ConnParam{})
		c.expect(t, "asked")
		require.NoError(t, c.cmd.Process.Kill())
		err := await(t, dialed) // ends with the hang-up or the kernel's reject
		require.True(t, errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.ECONNREFUSED), err)
	})
}

func TestADialerKilledBeforeItIsAnsweredFailsAccept(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *testFabric) {
		addr := f.addr(t)
		l := f.listen(t, addr, ListenConfig{HandshakeTimeout: time.Minute})
		c := startChild(t, 0, "dialAndWait", f.device, addr.String())
		r, err := l.Accept(within(t))
		require.NoError(t, err)
		require.NoError(t, c.cmd.Process.Kill())
		if !f.iwarp {
			_ = c.cmd.Wait() // ends with the child, and what it had open is closed
		}
		conn, err := r.Accept(within(t), f.newSide(t).qp(t), ConnParam{})
		if f.iwarp && err == nil {
			// A process with a handshake of siw dies when that is over.
			await(t, conn.Disconnected()) // ends with the process
			require.ErrorIs(t, conn.Err(), ErrDisconnected)
			require.NoError(t, conn.Disconnect())
			return
		}
		require.ErrorIs(t, err, syscall.ECONNRESET)
	})
}

// TestADialerKilledBeforeItIsReadyEndsAccept is about the third message of a
// handshake, which the dialer's program sends where TCP is not behind it.
func TestADialerKilledBeforeItIsReadyEndsAccept(t *testing.T) {
	overDevices(t, func(t *testing.T, f *testFabric) {
		if f.iwarp {
			t.Skip("iWARP: the kernel ends the dialer's handshake by itself")
		}
		addr := f.addr(t)
		l := f.listen(t, addr, ListenConfig{HandshakeTimeout: time.Minute})
		c := startChild(t, 0, "dialMute", f.device, addr.String())
		r, err := l.Accept(within(t))
		require.NoError(t, err)
		accepted := make(chan error, 1)
		qp := f.newSide(t).qp(t)
		go func() {
			_, err := r.Accept(within(t), qp, ConnParam{})
			accepted <- err
		}()
		// The child's QP is still in RESET: nothing but the kernel's farewell
		// tells that it is gone, whether it comes before our reply or after.
		require.NoError(t, c.cmd.Process.Kill())
		require.ErrorIs(t, await(t, accepted), syscall.ECONNRESET) // ends with that farewell
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
		conn, err := f.resolve(t, addr).Connect(within(t), qp, ConnParam{})
		require.NoError(t, err)
		if !f.kernel {
			require.Equal(t, c.cmd.Process.Pid, conn.Peer().PID)
		}
		require.NoError(t, c.cmd.Process.Kill())
		await(t, conn.Disconnected()) // ends with the hang-up
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
			r, err := l.Accept(within(t))
			if err != nil {
				return
			}
			if c, err := r.Accept(within(t), qp, ConnParam{}); err == nil {
				accepted <- c
			}
		}()
		c := startChild(t, 0, "dial", f.device, addr.String())
		conn := await(t, accepted) // ends with the handshake
		require.NoError(t, c.cmd.Process.Kill())
		await(t, conn.Disconnected()) // ends with the hang-up
		require.ErrorIs(t, conn.Err(), f.endOfAPeer())
		require.NoError(t, conn.Disconnect())
	})
}

func TestAnAcceptorThatGoesBeforeItKnowsWeAreReadyEndsTheConnection(t *testing.T) {
	overDevices(t, func(t *testing.T, f *testFabric) {
		if f.iwarp {
			t.Skip("iWARP: the kernel ends the dialer's handshake by itself")
		}
		addr := f.addr(t)
		l := f.listen(t, addr, ListenConfig{})
		dialer, acceptor := f.newSide(t), f.newSide(t)
		for range 50 { // the RTU comes first now and then
			qp, other := dialer.qp(t), acceptor.qp(t)
			accepted := make(chan *cmID, 1)
			go func() {
				defer close(accepted)
				r, err := l.Accept(within(t))
				if err != nil {
					t.Error(err)
					return
				}
				id := r.(*kernelRequest).id
				p, err := ConnParam{}.complete(other, MaxReplyData)
				if err == nil {
					err = id.toInit(other, &p)
				}
				if err == nil {
					err = id.toRTS(other, &p, readDepth{})
				}
				if err == nil {
					err = id.accept(p.forKernel(other, readDepth{}))
				}
				if err != nil {
					t.Error(err)
				}
				accepted <- id
			}()
			conn, err := f.resolve(t, addr).Connect(within(t), qp, ConnParam{})
			require.NoError(t, err)
			id := await(t, accepted)
			require.NotNil(t, id)
			id.destroy()
			await(t, conn.Disconnected()) // ends with the REJ or the DREQ
			require.ErrorIs(t, conn.Err(), ErrDisconnected)
			require.NoError(t, conn.Disconnect())
		}
	})
}
