package kernelcm

import (
	"context"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/cmtest"
	"github.com/seed-b9b531af/ramjet/rcm/internal/handshake"
	_ "github.com/seed-b9b531af/ramjet/verbs/uverbs"
	"github.com/stretchr/testify/require"
)

func init() {
	cmtest.Roles["dialMute"], cmtest.Roles["resolve"], cmtest.Roles["dropPrivileges"] = dialMute, resolve, dropPrivileges
}

func on(device string) rcm.Fabric { return New(Config{Device: device}) }

// overDevices runs a test over the devices of the virtual machine.
func overDevices(t *testing.T, test func(t *testing.T, f *cmtest.Fabric)) {
	if !cmtest.HaveDevices() {
		t.Run("devices", func(t *testing.T) { t.Skip(cmtest.HowToFindDevices) })
		return
	}
	cmtest.OverAll(t, cmtest.FabricsOn(t, on), test)
}

// dialMute sends a request and goes no further, whatever the answer.
func dialMute(args []string) error {
	r, err := on(args[0]).Resolve(context.Background(), netip.MustParseAddrPort(args[1]))
	if err != nil {
		return err
	}
	s, err := cmtest.OpenSide(r.Device())
	if err != nil {
		return err
	}
	qp, err := s.NewQP()
	if err != nil {
		return err
	}
	p, err := handshake.Complete(rcm.ConnParam{}, qp, rcm.MaxRequestData)
	if err != nil {
		return err
	}
	if err := r.(*route).id.connect(connParam(&p, qp, handshake.ReadDepth{})); err != nil {
		return err
	}
	cmtest.UntilStdinEnds()
	return nil
}

// TestADialerKilledBeforeItIsReadyEndsAccept is about the third message of a
// handshake, which the dialer's program sends where TCP is not behind it.
func TestADialerKilledBeforeItIsReadyEndsAccept(t *testing.T) {
	overDevices(t, func(t *testing.T, f *cmtest.Fabric) {
		if f.IWARP {
			t.Skip("iWARP: the kernel ends the dialer's handshake by itself")
		}
		addr := f.Addr(t)
		l := f.MustListen(t, addr, rcm.ListenConfig{HandshakeTimeout: time.Minute})
		c := cmtest.StartChild(t, 0, "dialMute", f.Device, addr.String())
		r, err := l.Accept(cmtest.Within(t))
		require.NoError(t, err)
		accepted := make(chan error, 1)
		qp := f.NewSide(t).QP(t)
		go func() {
			_, err := r.Accept(cmtest.Within(t), qp, rcm.ConnParam{})
			accepted <- err
		}()
		// The child's QP is still in RESET: nothing but the kernel's disconnect
		// tells that it is gone, whether it comes before our reply or after.
		require.NoError(t, c.Kill())
		require.ErrorIs(t, cmtest.Await(t, accepted), syscall.ECONNRESET) // ends with that
	})
}

func TestAnAcceptorThatGoesBeforeItKnowsWeAreReadyEndsTheConnection(t *testing.T) {
	overDevices(t, func(t *testing.T, f *cmtest.Fabric) {
		if f.IWARP {
			t.Skip("iWARP: the kernel ends the dialer's handshake by itself")
		}
		addr := f.Addr(t)
		l := f.MustListen(t, addr, rcm.ListenConfig{})
		dialer, acceptor := f.NewSide(t), f.NewSide(t)
		for range 50 { // the RTU comes first now and then
			qp, other := dialer.QP(t), acceptor.QP(t)
			accepted := make(chan *cmID, 1)
			go func() {
				defer close(accepted)
				r, err := l.Accept(cmtest.Within(t))
				if err != nil {
					t.Error(err)
					return
				}
				id := r.(*request).id
				p, err := handshake.Complete(rcm.ConnParam{}, other, rcm.MaxReplyData)
				if err == nil {
					err = id.toInit(other, &p)
				}
				if err == nil {
					err = id.toRTS(other, &p, handshake.ReadDepth{})
				}
				if err == nil {
					err = id.accept(connParam(&p, other, handshake.ReadDepth{}))
				}
				if err != nil {
					t.Error(err)
				}
				accepted <- id
			}()
			conn, err := f.MustResolve(t, addr).Connect(cmtest.Within(t), qp, rcm.ConnParam{})
			require.NoError(t, err)
			id := cmtest.Await(t, accepted)
			require.NotNil(t, id)
			id.destroy()
			cmtest.Await(t, conn.Disconnected()) // ends with the REJ or the DREQ
			require.ErrorIs(t, conn.Err(), rcm.ErrDisconnected)
			require.NoError(t, conn.Disconnect())
		}
	})
}
