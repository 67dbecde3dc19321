package kerneltest

import (
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/seed-b9b531af/ramjet/rnet/internal/mux"
	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
	"github.com/seed-b9b531af/ramjet/rnet/internal/traffic"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func init() { roles.Add("exchanges", answerAll) }

// answerAll listens on a device, says where, and answers exchanges.
func answerAll(args []string) error {
	ln, err := listenAs(args[0])
	if err != nil {
		return err
	}
	traffic.ServeExchanges(ln, func(c net.Conn, err error) { println("exchange failed:", err.Error()) })
	return nil
}

// A thousand streams go over one QP, all at once and both ways, to another
// process.
func TestKernelCarriesAThousandStreamsOverOneQP(t *testing.T) {
	const (
		streams = 1000
		size    = 8 << 10
	)
	overKernel(t, func(t *testing.T, k device) {
		child := roles.Start(t, "exchanges", k.name)
		address := child.Line(t)
		conns := make([]net.Conn, streams)
		for i := range conns {
			var err error
			conns[i], err = k.dialer().Dial("tcp", address)
			require.NoError(t, err)
			defer conns[i].Close()
		}
		var work sync.WaitGroup
		for i, c := range conns {
			work.Go(func() { assert.NoError(t, traffic.Exchange(c, uint64(i)*2, size+i)) })
		}
		await := hang.Start(t, work.Wait)
		await()

		st := rnet.ReadStats()
		require.Len(t, st.Sessions, 1)
		require.Equal(t, rnet.RDMA, st.Sessions[0].Transport)
		require.Equal(t, k.name, st.Sessions[0].Device)
		require.Equal(t, streams, st.Sessions[0].Streams)
		qps := run(t, "rdma", "resource", "show", "qp", "link", k.name+"/1", "type", "RC")
		require.Equal(t, 2, strings.Count(qps, "type RC"), "one of ours, one of the peer's: %s", qps)
		require.EqualValues(t, st.Sessions[0].BytesIn, streams*(size+1)+streams*(streams-1)/2)
		require.EqualValues(t, st.Sessions[0].BytesOut, streams*(size+traffic.ExchangeHeader)+streams*(streams-1)/2)
	})
}

// A session outlives its last stream by a moment, for the next one, and no
// longer.
func TestKernelSessionWithoutStreamsEnds(t *testing.T) {
	overKernel(t, func(t *testing.T, k device) {
		address := roles.Start(t, "serve", "auto", k.host).Line(t)
		c := dialMode(t, k.dialer(), address, traffic.Exchanging)
		require.NoError(t, traffic.Exchange(c, 1, 50<<10))
		closed := time.Now()
		require.NoError(t, c.Close())
		hang.Eventually(t, "the session has ended", func() bool { return len(rnet.ReadStats().Sessions) == 0 })
		took := time.Since(closed)
		t.Logf("the session has ended after %v", took)
		require.GreaterOrEqual(t, took, mux.IdleTime)
		require.Less(t, took, mux.IdleTime+mux.FlushTime+slowness)
	})
}
