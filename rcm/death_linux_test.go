package rcm_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/cmtest"
	"github.com/stretchr/testify/require"
)

// What is seen of a peer whose process is killed, at each step of a
// connection.

func init() {
	cmtest.Roles["serve"], cmtest.Roles["dial"], cmtest.Roles["listenMute"], cmtest.Roles["dialAndWait"] = serve, connectAndWait, listenMute, dialAndWait
}

// listenMute takes one request, says so, and never answers it.
func listenMute(args []string) error {
	l, err := fabricOn(args[0]).Listen(netip.MustParseAddrPort(args[1]), rcm.ListenConfig{})
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

// dialAndWait connects, however long the answer takes.
func dialAndWait(args []string) error {
	fmt.Println("ready")
	return connectAndWait(args)
}

func TestAnAcceptorKilledBeforeItAnswersEndsConnect(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *cmtest.Fabric) {
		addr := f.Addr(t)
		c := cmtest.StartChild(t, 0, "listenMute", f.Device, addr.String())
		dialed := f.DialAsync(t, cmtest.Within(t), addr, rcm.ConnParam{})
		c.Expect(t, "asked")
		require.NoError(t, c.Kill())
		err := cmtest.Await(t, dialed) // ends with the hang-up or the kernel's reject
		require.True(t, errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.ECONNREFUSED), err)
	})
}

func TestADialerKilledBeforeItIsAnsweredFailsAccept(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *cmtest.Fabric) {
		addr := f.Addr(t)
		l := f.MustListen(t, addr, rcm.ListenConfig{HandshakeTimeout: time.Minute})
		c := cmtest.StartChild(t, 0, "dialAndWait", f.Device, addr.String())
		r, err := l.Accept(cmtest.Within(t))
		require.NoError(t, err)
		require.NoError(t, c.Kill())
		if !f.IWARP {
			c.WaitEnd() // ends with the child, and what it had open is closed
		}
		conn, err := r.Accept(cmtest.Within(t), f.NewSide(t).QP(t), rcm.ConnParam{})
		if f.IWARP && err == nil {
			// A process with a handshake of siw dies when that is over.
			cmtest.Await(t, conn.Disconnected()) // ends with the process
			require.ErrorIs(t, conn.Err(), rcm.ErrDisconnected)
			require.NoError(t, conn.Disconnect())
			return
		}
		require.ErrorIs(t, err, syscall.ECONNRESET)
	})
}

// endOfAPeer is how the death of a peer's process looks: the kernel
// disconnects for it, the software HCA sees a hang-up.
func endOfAPeer(f *cmtest.Fabric) error {
	if f.Kernel {
		return rcm.ErrDisconnected
	}
	return syscall.ECONNRESET
}

func TestAKilledAcceptorIsSeenAtOnce(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *cmtest.Fabric) {
		addr := f.Addr(t)
		c := cmtest.StartChild(t, 0, "serve", f.Device, addr.String())
		qp := f.NewSide(t).QP(t)
		conn, err := f.MustResolve(t, addr).Connect(cmtest.Within(t), qp, rcm.ConnParam{})
		require.NoError(t, err)
		if !f.Kernel {
			require.Equal(t, c.PID(), conn.Peer().PID)
		}
		require.NoError(t, c.Kill())
		cmtest.Await(t, conn.Disconnected()) // ends with the hang-up
		require.ErrorIs(t, conn.Err(), endOfAPeer(f))
		require.NoError(t, conn.Disconnect())
	})
}

func TestAKilledDialerIsSeenAtOnce(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *cmtest.Fabric) {
		addr := f.Addr(t)
		l := f.MustListen(t, addr, rcm.ListenConfig{})
		accepted := make(chan rcm.Conn, 1)
		qp := f.NewSide(t).QP(t)
		go func() {
			r, err := l.Accept(cmtest.Within(t))
			if err != nil {
				return
			}
			if c, err := r.Accept(cmtest.Within(t), qp, rcm.ConnParam{}); err == nil {
				accepted <- c
			}
		}()
		c := cmtest.StartChild(t, 0, "dial", f.Device, addr.String())
		conn := cmtest.Await(t, accepted) // ends with the handshake
		require.NoError(t, c.Kill())
		cmtest.Await(t, conn.Disconnected()) // ends with the hang-up
		require.ErrorIs(t, conn.Err(), endOfAPeer(f))
		require.NoError(t, conn.Disconnect())
	})
}
