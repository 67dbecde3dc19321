package rcm

import (
	"context"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

// freePort returns a port that nobody else on this host uses until the test
// is over, because its TCP listener holds it.
func freePort(t testing.TB) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return uint16(l.Addr().(*net.TCPAddr).Port)
}

func at(host string, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(host), port)
}

func TestListenRefusesBadArguments(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *testFabric) {
		for _, c := range []struct {
			name string
			addr netip.AddrPort
			cfg  ListenConfig
			want error
		}{
			{"port 0", netip.AddrPortFrom(f.host, 0), ListenConfig{}, verbs.ErrInvalid},
			{"no address", netip.AddrPort{}, ListenConfig{}, verbs.ErrInvalid},
			{"zone of nothing", netip.MustParseAddrPort("[fe80::1%none]:9"), ListenConfig{}, ErrNoRoute},
			{"negative backlog", netip.AddrPortFrom(f.host, 9), ListenConfig{Backlog: -1}, verbs.ErrInvalid},
			{"negative timeout", netip.AddrPortFrom(f.host, 9), ListenConfig{HandshakeTimeout: -1}, verbs.ErrInvalid},
		} {
			t.Run(c.name, func(t *testing.T) {
				_, err := f.Listen(c.addr, c.cfg)
				require.ErrorIs(t, err, c.want)
			})
		}
	})
}

func TestAnAddressHasOneListenerAtATime(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *testFabric) {
		addr := f.addr(t)
		l := f.listen(t, addr, ListenConfig{})
		require.Equal(t, addr, l.Addr())
		_, err := f.Listen(addr, ListenConfig{})
		require.ErrorIs(t, err, syscall.EADDRINUSE)
		require.NoError(t, l.Close())
		require.NoError(t, l.Close())
		f.listen(t, addr, ListenConfig{})
	})
}

func TestAcceptEndsWithItsContext(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *testFabric) {
		l := f.listen(t, f.addr(t), ListenConfig{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err := l.Accept(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, ErrTimeout)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		var timeout net.Error
		require.ErrorAs(t, err, &timeout)
		require.True(t, timeout.Timeout())
	})
}

func TestAcceptEndsWithTheListener(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *testFabric) {
		l := f.listen(t, f.addr(t), ListenConfig{})
		ended := make(chan error)
		for range 3 {
			go func() {
				_, err := l.Accept(within(t))
				ended <- err
			}()
		}
		require.NoError(t, l.Close())
		for range 3 {
			require.ErrorIs(t, await(t, ended), net.ErrClosed) // each ends because of Close
		}
	})
}

func TestDialersBeyondTheBacklogAreTold(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *testFabric) {
		addr := f.addr(t)
		l := f.listen(t, addr, ListenConfig{Backlog: 2})
		var waiting []<-chan error
		for i := range 2 {
			waiting = append(waiting, f.dialAsync(t, within(t), addr, ConnParam{}))
			require.Eventually(t, func() bool { return l.Stats().Requests == uint64(i+1) }, time.Minute, time.Millisecond)
		}
		err := <-f.dialAsync(t, within(t), addr, ConnParam{}) // ends with the REJ
		require.ErrorIs(t, err, ErrBusy)
		require.Equal(t, ListenStats{Requests: 2, Overflows: 1}, l.Stats())
		require.NoError(t, l.Close())
		for _, w := range waiting {
			require.ErrorIs(t, await(t, w), ErrNoListener) // each ends with the REJ of Close
		}
	})
}
