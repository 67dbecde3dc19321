package kernelcm

import (
	"context"
	"errors"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/cmtest"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

// Connections with ucmatose of librdmacm's examples, which makes several at
// once. Its server sends some messages over each and then takes as many; its
// client the other way round. It is for the server to disconnect.
//
// iWARP forbids the side that listens to send first (RFC 5044, section 7.1), and siw
// means it: a dialer's siw that finds more than MPA's reply in the socket breaks the
// connection off (siw_recv_mpa_rr: EPROTO, which Connect returns as EINVAL). It does so
// when it is late, on a busy machine. So our server waits until the client's
// handshakes are over, and our client starts another server after that error.

const (
	ucmatoseConnections = 3
	ucmatoseMessages    = 10
)

// ucmatose starts the C program for messages of 4 bytes.
func ucmatose(t *testing.T, addr netip.AddrPort, connections int, args ...string) *program {
	t.Helper()
	return startProgram(t, "ucmatose", append(args, "-p", strconv.Itoa(int(addr.Port())),
		"-c", strconv.Itoa(connections), "-C", strconv.Itoa(ucmatoseMessages), "-S", "4")...)
}

// receives makes room for all messages of the peer.
func receives(s *cmtest.Side, qp *verbs.QP) error {
	for range ucmatoseMessages {
		if err := s.Receive(qp); err != nil {
			return err
		}
	}
	return nil
}

func tellAll(s *cmtest.Side, t *testing.T, qp *verbs.QP) {
	t.Helper()
	for i := range ucmatoseMessages {
		require.NoError(t, cmtest.Tell(qp, uint32(i)))
	}
}

func receiveAll(s *cmtest.Side, t *testing.T) {
	t.Helper()
	for range ucmatoseMessages {
		_, _, err := s.Await()
		require.NoError(t, err)
	}
}

func TestAUcmatoseClientIsServed(t *testing.T) {
	overDevices(t, func(t *testing.T, f *cmtest.Fabric) {
		addr := f.Addr(t)
		l := f.MustListen(t, addr, rcm.ListenConfig{})
		client := ucmatose(t, addr, ucmatoseConnections, "-s", addr.Addr().String())

		type connection struct {
			*cmtest.Side
			qp *verbs.QP
			rcm.Conn
		}
		var list []connection
		for range ucmatoseConnections {
			r, err := l.Accept(cmtest.Within(t))
			require.NoError(t, err)
			s := f.NewSide(t)
			qp := s.QP(t)
			c, err := r.Accept(cmtest.Within(t), qp, rcm.ConnParam{Prepare: func(qp *verbs.QP) error { return receives(s, qp) }})
			require.NoError(t, err)
			list = append(list, connection{s, qp, c})
		}
		if f.IWARP {
			require.Eventually(t, func() bool { return strings.Contains(client.said(), "receiving data transfers") }, cmtest.Timeout, time.Millisecond)
		}
		for _, c := range list {
			tellAll(c.Side, t, c.qp)
		}
		for _, c := range list {
			receiveAll(c.Side, t)
			require.NoError(t, c.Disconnect())
		}
		require.NoError(t, client.wait())
		require.Contains(t, client.said(), "data transfers complete")
	})
}

func TestAUcmatoseServerServes(t *testing.T) {
	overDevices(t, func(t *testing.T, f *cmtest.Fabric) {
		addr := f.Addr(t)
		start := func() *program { return ucmatose(t, addr, 1, "-b", addr.Addr().String()) }
		server := start()

		var s *cmtest.Side
		var qp *verbs.QP
		var c rcm.Conn
		deadline := time.Now().Add(cmtest.Timeout)
		for c == nil {
			// A QP that failed is of no use to siw any more.
			s = f.NewSide(t)
			qp = s.QP(t)
			attempt, cancel := context.WithTimeout(t.Context(), cmtest.Timeout/10)
			var err error
			c, err = f.MustResolve(t, addr).Connect(attempt, qp, rcm.ConnParam{Prepare: func(qp *verbs.QP) error { return receives(s, qp) }})
			cancel()
			if err != nil {
				// What meets the server between its bind and its listen is
				// reset, which siw tells as EINVAL (siw_proc_mpareply) too. What
				// meets it while it begins to listen siw leaves in the backlog of
				// TCP until the next one comes (siw_listen_address).
				met := errors.Is(err, syscall.EINVAL) || f.IWARP && errors.Is(err, context.DeadlineExceeded)
				require.True(t, errors.Is(err, rcm.ErrNoListener) || met, "%v", err)
				if met {
					server.stop()
					server = start()
				}
				require.True(t, time.Now().Before(deadline), "nobody listens after a minute: %v", err)
				time.Sleep(20 * time.Millisecond)
			}
		}
		receiveAll(s, t)
		tellAll(s, t, qp)
		cmtest.Await(t, c.Disconnected()) // ends with the server's DREQ
		require.ErrorIs(t, c.Err(), rcm.ErrDisconnected)
		require.NoError(t, c.Disconnect())
		require.NoError(t, server.wait())
		require.Contains(t, server.said(), "data transfers complete")
	})
}
