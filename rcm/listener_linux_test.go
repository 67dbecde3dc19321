package rcm_test

import (
	"context"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/cmtest"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

func TestListenRefusesBadArguments(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *cmtest.Fabric) {
		for _, c := range []struct {
			name string
			addr netip.AddrPort
			cfg  rcm.ListenConfig
			want error
		}{
			{"port 0", netip.AddrPortFrom(f.Host, 0), rcm.ListenConfig{}, verbs.ErrInvalid},
			{"no address", netip.AddrPort{}, rcm.ListenConfig{}, verbs.ErrInvalid},
			{"zone of nothing", netip.MustParseAddrPort("[fe80::1%none]:9"), rcm.ListenConfig{}, rcm.ErrNoRoute},
			{"negative backlog", netip.AddrPortFrom(f.Host, 9), rcm.ListenConfig{Backlog: -1}, verbs.ErrInvalid},
			{"negative timeout", netip.AddrPortFrom(f.Host, 9), rcm.ListenConfig{HandshakeTimeout: -1}, verbs.ErrInvalid},
		} {
			t.Run(c.name, func(t *testing.T) {
				_, err := f.Listen(c.addr, c.cfg)
				require.ErrorIs(t, err, c.want)
			})
		}
	})
}

func TestAnAddressHasOneListenerAtATime(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *cmtest.Fabric) {
		addr := f.Addr(t)
		l := f.MustListen(t, addr, rcm.ListenConfig{})
		require.Equal(t, addr, l.Addr())
		_, err := f.Listen(addr, rcm.ListenConfig{})
		require.ErrorIs(t, err, syscall.EADDRINUSE)
		require.NoError(t, l.Close())
		require.NoError(t, l.Close())
		f.MustListen(t, addr, rcm.ListenConfig{})
	})
}

func TestAcceptEndsWithItsContext(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *cmtest.Fabric) {
		l := f.MustListen(t, f.Addr(t), rcm.ListenConfig{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err := l.Accept(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, rcm.ErrTimeout)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		var timeout net.Error
		require.ErrorAs(t, err, &timeout)
		require.True(t, timeout.Timeout())
	})
}

func TestAcceptEndsWithTheListener(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *cmtest.Fabric) {
		l := f.MustListen(t, f.Addr(t), rcm.ListenConfig{})
		ended := make(chan error)
		for range 3 {
			go func() {
				_, err := l.Accept(cmtest.Within(t))
				ended <- err
			}()
		}
		require.NoError(t, l.Close())
		for range 3 {
			require.ErrorIs(t, cmtest.Await(t, ended), net.ErrClosed) // each ends because of Close
		}
	})
}

func TestDialersBeyondTheBacklogAreTold(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *cmtest.Fabric) {
		addr := f.Addr(t)
		l := f.MustListen(t, addr, rcm.ListenConfig{Backlog: 2})
		var waiting []<-chan error
		for i := range 2 {
			waiting = append(waiting, f.DialAsync(t, cmtest.Within(t), addr, rcm.ConnParam{}))
			require.Eventually(t, func() bool { return l.Stats().Requests == uint64(i+1) }, time.Minute, time.Millisecond)
		}
		err := <-f.DialAsync(t, cmtest.Within(t), addr, rcm.ConnParam{}) // ends with the REJ
		require.ErrorIs(t, err, rcm.ErrBusy)
		require.Equal(t, rcm.ListenStats{Requests: 2, Overflows: 1}, l.Stats())
		require.NoError(t, l.Close())
		for _, w := range waiting {
			// each ends with the REJ of Close
			require.ErrorIs(t, cmtest.Await(t, w), rcm.ErrNoListener)
		}
	})
}
