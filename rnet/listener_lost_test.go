package rnet

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/rcm"
)

// lostListener is a listener of the connection manager whose Accept has failed,
// as that of a kernel device does whose descriptor is lost.
type lostListener struct {
	rcm.Listener
	err error
}

func (l lostListener) Accept(context.Context) (rcm.Request, error) { return nil, l.err }

// Nobody sees that a listener is there over TCP only from now on, unless it is
// logged. That it was closed is no news.
func TestLossOfATransportsListenerIsLogged(t *testing.T) {
	ln := overSoft.listen(t).(*Listener)
	var text bytes.Buffer
	ln.set.Log = slog.New(slog.NewTextHandler(&text, nil))
	soft := ln.onFabrics()[0]
	ln.acceptFabric(fallback.RDMA, lostListener{soft, errors.New("the descriptor is gone")})
	require.Contains(t, text.String(), "level=ERROR")
	require.Contains(t, text.String(), "transport=rdma")
	require.Contains(t, text.String(), "the descriptor is gone")

	text.Reset()
	require.NoError(t, ln.Close())
	ln.acceptFabric(fallback.Soft, soft)
	require.Empty(t, text.String())
}

// A listener that is lost is opened again.
func TestLostListenerOfATransportIsReplaced(t *testing.T) {
	ln := overSoft.listen(t).(*Listener)
	require.NoError(t, ln.onFabrics()[0].Close())
	hang.Eventually(t, "dials lead to the listener again", func() bool {
		c, err := overSoft.dialer().Dial("tcp", ln.Addr().String())
		if err != nil {
			return false
		}
		defer c.Close()
		s, err := ln.Accept()
		require.NoError(t, err)
		return s.Close() == nil
	})
}

// loser is a fabric whose listeners are lost as soon as they are there.
type loser struct {
	rcm.Fabric
	listens atomic.Int32
}

func (f *loser) Listen(netip.AddrPort, rcm.ListenConfig) (rcm.Listener, error) {
	f.listens.Add(1)
	return lostListener{nothing{}, errors.New("the descriptor is gone")}, nil
}

type nothing struct{ rcm.Listener }

func (nothing) Addr() netip.AddrPort { return netip.AddrPort{} }
func (nothing) Close() error         { return nil }

// One that is always lost at once is not opened as fast as that goes.
func TestListenerThatIsLostAtOnceIsOpenedSeldom(t *testing.T) {
	ln := overSoft.listen(t).(*Listener)
	ln.set.Log = slog.New(slog.DiscardHandler)
	f := new(loser)
	ln.newFabricListener(fabric{Fabric: f, transport: fallback.RDMA}, netip.AddrPort{}, rcm.ListenConfig{}).open(nil)
	hang.Eventually(t, "it is opened", func() bool { return f.listens.Load() > 0 })
	time.Sleep(100 * time.Millisecond)
	require.Less(t, f.listens.Load(), int32(10))
	require.NoError(t, ln.Close()) // waits for it
}
