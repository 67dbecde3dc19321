package rcm

import (
	"errors"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

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
func (s *side) receives(qp *verbs.QP) error {
	for range ucmatoseMessages {
		if err := s.receive(qp); err != nil {
			return err
		}
	}
	return nil
}

func (s *side) tellAll(t *testing.T, qp *verbs.QP) {
	t.Helper()
	for i := range ucmatoseMessages {
		require.NoError(t, tell(qp, uint32(i)))
	}
}

func (s *side) hearAll(t *testing.T) {
	t.Helper()
	for range ucmatoseMessages {
		_, _, err := s.hear()
		require.NoError(t, err)
	}
}

func TestAUcmatoseClientIsServed(t *testing.T) {
	overDevices(t, func(t *testing.T, f *testFabric) {
		addr := f.addr(t)
		l := f.listen(t, addr, ListenConfig{})
		client := ucmatose(t, addr, ucmatoseConnections, "-s", addr.Addr().String())

		type connection struct {
			*side
			qp *verbs.QP
			Conn
		}
		var list []connection
		for range ucmatoseConnections {
			r, err := l.Accept(within(t))
			require.NoError(t, err)
			s := f.newSide(t)
			qp := s.qp(t)
			c, err := r.Accept(within(t), qp, ConnParam{Prepare: s.receives})
			require.NoError(t, err)
			list = append(list, connection{s, qp, c})
		}
		if f.iwarp {
			require.Eventually(t, func() bool { return strings.Contains(client.said(), "receiving data transfers") }, patience, time.Millisecond)
		}
		for _, c := range list {
			c.tellAll(t, c.qp)
		}
		for _, c := range list {
			c.hearAll(t)
			require.NoError(t, c.Disconnect())
		}
		require.NoError(t, client.wait())
		require.Contains(t, client.said(), "data transfers complete")
	})
}

func TestAUcmatoseServerServes(t *testing.T) {
	overDevices(t, func(t *testing.T, f *testFabric) {
		addr := f.addr(t)
		start := func() *program { return ucmatose(t, addr, 1, "-b", addr.Addr().String()) }
		server := start()

		var s *side
		var qp *verbs.QP
		var c Conn
		deadline := time.Now().Add(patience)
		for c == nil {
			// A QP that failed is of no use to siw any more.
			s = f.newSide(t)
			qp = s.qp(t)
			var err error
			if c, err = f.resolve(t, addr).Connect(within(t), qp, ConnParam{Prepare: s.receives}); err != nil {
				// What meets the server between its bind and its listen is
				// reset, which siw tells as EINVAL (siw_proc_mpareply) too.
				require.True(t, errors.Is(err, ErrNoListener) || errors.Is(err, syscall.EINVAL), "%v", err)
				if errors.Is(err, syscall.EINVAL) {
					server.stop()
					server = start()
				}
				require.True(t, time.Now().Before(deadline), "nobody listens after a minute: %v", err)
				time.Sleep(20 * time.Millisecond)
			}
		}
		s.hearAll(t)
		s.tellAll(t, qp)
		await(t, c.Disconnected()) // ends with the server's DREQ
		require.ErrorIs(t, c.Err(), ErrDisconnected)
		require.NoError(t, c.Disconnect())
		require.NoError(t, server.wait())
		require.Contains(t, server.said(), "data transfers complete")
	})
}
