package rgnet

import (
	"net"
	"net/netip"
	"testing"

	"github.com/panjf2000/gnet/v2"
	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/rnet"
)

func TestStatisticsTellOfLoopsTheirPeersAndWhatTheyHold(t *testing.T) {
	const unread, unsent = 3 << 20, 8 << 20
	wrote := make(chan struct{}, 1)
	s := auto.serve(t, &script{traffic: func(c gnet.Conn) gnet.Action {
		if c.InboundBuffered() == unread {
			c.Write(make([]byte, unsent))
			wrote <- struct{}{}
		}
		return gnet.None
	}})
	stream := streamCarriers[0].dial(t, s.address)
	overTCP.dial(t, s.address)
	_, err := stream.Write(make([]byte, unread))
	require.NoError(t, err)
	hang.Receive(t, wrote, "the handler has written")

	at := netip.MustParseAddrPort(s.address)
	listener := func() (found rnet.ListenerStats) {
		for _, ln := range rnet.ReadStats().Listeners {
			if ln.Addr == at {
				found = ln
			}
		}
		return found
	}
	hang.Eventually(t, "both kinds of peers are counted", func() bool {
		ln := listener()
		return ln.TCP == 1 && ln.Streams == 2 // awaitListener's, and ours
	})
	require.Equal(t, 1, listener().Sessions)
	hang.Eventually(t, "what the handler holds is told", func() bool {
		for _, st := range rnet.ReadStreams(100) {
			if st.LocalAddr == at && st.Unread >= unread && st.Unsent > unsent/2 && st.Unsent < unsent {
				return true
			}
		}
		return false
	})
	var loops, hits, misses uint64
	hang.Eventually(t, "iterations and sleeps are counted", func() bool {
		st := rnet.ReadStats()
		loops, hits, misses = 0, 0, 0
		for _, l := range st.Loops {
			if l.Sessions == 1 && l.Iterations > 0 && l.Sleeps > 0 {
				loops++
			}
		}
		for _, one := range st.Sessions {
			if one.LocalAddr == at {
				hits, misses = hits+one.PollHits, misses+one.PollMisses
			}
		}
		return loops == 1 && hits > 0 && misses > 0
	})
}

func TestAConnectionIsCountedByTheListenerThatHasAccepted(t *testing.T) {
	const port = 9000
	listeners := []string{"0.0.0.0", "::", "127.0.0.1", "::1"}
	for _, c := range []struct {
		listen []string // those that there are
		at     string   // where the peer has connected to
		want   string   // "" for none
	}{
		{listeners, "127.0.0.1", "127.0.0.1"},
		{listeners, "::1", "::1"},
		{listeners, "10.0.0.1", "0.0.0.0"},
		{listeners, "fe80::1", "::"},
		{[]string{"::", "127.0.0.1"}, "10.0.0.1", "::"},
		{[]string{"127.0.0.1", "::1"}, "10.0.0.1", ""},
	} {
		best, most := "", 0
		for _, ip := range c.listen {
			if n := specificity(&net.TCPAddr{IP: net.ParseIP(ip), Port: port}, &net.TCPAddr{IP: net.ParseIP(c.at), Port: port}); n > most {
				best, most = ip, n
			}
		}
		require.Equal(t, c.want, best, "%+v", c)
	}
	require.Zero(t, specificity(&net.TCPAddr{IP: net.IPv4zero, Port: port}, &net.TCPAddr{IP: net.IPv4zero, Port: port + 1}))
}

func TestEndedLoopsAreCountedNoMore(t *testing.T) {
	before := len(rnet.ReadStats().Loops)
	s := auto.serve(t, new(echo), gnet.WithNumEventLoop(3))
	require.Len(t, rnet.ReadStats().Loops, before+3)
	s.stop(t)
	require.Len(t, rnet.ReadStats().Loops, before)
}
