package rnet

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/fallback"
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
	ln.set.log = slog.New(slog.NewTextHandler(&text, nil))
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
	eventually(t, "dials lead to the listener again", func() bool {
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
