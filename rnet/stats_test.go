package rnet

import (
	"io"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/internal/leak"
	"github.com/seed-b9b531af/ramjet/rnet/internal/mux"
	"github.com/seed-b9b531af/ramjet/rnet/internal/traffic"
)

func TestStatsCountWhatGoesThrough(t *testing.T) {
	c, s := overSoft.streams(t)
	const n = 100 << 10
	await := hang.Start(t, func() { assert.NoError(t, traffic.Write(c, traffic.NewRand(1), 1, n, n)) })
	require.NoError(t, traffic.Read(s, traffic.NewRand(2), 1, n-1000, n))
	await()
	hang.Eventually(t, "all has arrived", func() bool { return s.Stats().BytesIn == n })
	out, in := c.Stats(), s.Stats()
	require.EqualValues(t, n, out.BytesOut)
	require.Equal(t, 1000, in.Unread)
	require.Equal(t, out.ID, in.ID)
	require.Equal(t, Soft, out.Transport)
	require.Equal(t, 1, out.SessionStreams)
	require.Equal(t, c.LocalAddr().String(), out.LocalAddr.String())
	require.Equal(t, c.RemoteAddr().String(), out.RemoteAddr.String())
	require.NotZero(t, out.PeerPID)

	var dialed, accepted SessionStats
	hang.Eventually(t, "the session has counted what the stream has", func() bool {
		for _, st := range ReadStats().Sessions {
			switch {
			case st.LocalAddr.String() == s.LocalAddr().String():
				accepted = st
			case st.RemoteAddr.String() == c.RemoteAddr().String():
				dialed = st
			}
		}
		return accepted.BytesIn >= n && dialed.BytesOut >= n
	})
	require.True(t, dialed.Dialed)
	require.False(t, accepted.Dialed)
	require.EqualValues(t, n, dialed.BytesOut)
	require.EqualValues(t, n, accepted.BytesIn)
	require.Equal(t, "soft0", dialed.Device)
	require.Equal(t, 1, accepted.Streams)
	require.GreaterOrEqual(t, dialed.FramesOut, uint64(n/maxPayload))
	require.False(t, dialed.Opened.IsZero())
	require.Positive(t, ReadStats().PinnedBytes)
}

func TestDialsAreCounted(t *testing.T) {
	count := func(transport Transport, reason string) uint64 {
		for _, d := range ReadStats().Dials {
			if d.Transport == transport && d.Reason == reason {
				return d.Dials
			}
		}
		return 0
	}
	ln := carrier{}.listen(t)
	soft, forced := count(Soft, "none"), count(TCP, "forced")
	for range 3 {
		overSoft.connect(t, ln)
		overTCP.connect(t, ln)
	}
	require.Equal(t, soft+3, count(Soft, "none"))
	require.Equal(t, forced+3, count(TCP, "forced"))
}

// A dial may come at the moment in which its session goes idle.
func TestDialMeetsTheEndOfAnIdleSession(t *testing.T) {
	leak.Check(t)
	ln := overSoft.listen(t)
	go func() { // ends with the listener
		for {
			s, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				io.Copy(s, s)
				s.Close()
			}()
		}
	}()
	var dialing sync.WaitGroup
	for i := range 8 {
		d := Dialer{Transport: Soft, Limits: Limits{Window: 64<<10 + i}} // a session of its own
		dialing.Go(func() {
			for round := range times(4, 20) {
				for range 3 {
					c, err := d.Dial("tcp", ln.Addr().String())
					if !assert.NoError(t, err) {
						return
					}
					assert.NoError(t, traffic.RoundTrip(c))
					c.Close()
				}
				time.Sleep(mux.IdleTime + time.Duration(i*round-10)*100*time.Microsecond)
			}
		})
	}
	hang.Start(t, dialing.Wait)()
}
