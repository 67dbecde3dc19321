package rnet

import (
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/internal/leak"
	"github.com/seed-b9b531af/ramjet/rnet/internal/mux"
	"github.com/seed-b9b531af/ramjet/rnet/internal/settings"
	"github.com/seed-b9b531af/ramjet/rnet/internal/traffic"
)

// ringBytes returns the memory that the regions have that peers may write to: rings,
// in this process of both ends.
func ringBytes(t *testing.T) (bytes int64) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, fd := range fds {
		path := "/proc/self/fd/" + fd.Name()
		name, err := os.Readlink(path)
		if err != nil || !strings.Contains(name, "memfd:ramjet-mr") {
			continue
		}
		var st syscall.Stat_t
		require.NoError(t, syscall.Stat(path, &st), fd.Name())
		bytes += st.Blocks * 512
	}
	return bytes
}

func pingPong(t *testing.T, a, b net.Conn, times int) {
	t.Helper()
	msg := make([]byte, 64)
	for range times {
		for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
			_, err := way[0].Write(msg)
			require.NoError(t, err)
			_, err = io.ReadFull(way[1], msg)
			require.NoError(t, err)
		}
	}
}

func TestSessionOfRequestsAndAnswersTouchesLittleOfItsRings(t *testing.T) {
	const sessions = 20
	awaitNoSessions(t)
	k := carrier{name: "soft-dedicated", transport: Soft, dedicated: true}
	ln := k.listen(t)
	for range sessions {
		c, s := k.connect(t, ln)
		pingPong(t, c, s, orRaced(10, 2)*settings.DefaultRingSize/(2*80)/sessions)
	}
	const each = 2 * 4 << 10
	require.LessOrEqual(t, ringBytes(t)/sessions, int64(each), "bytes for a session, both ends")
}

func TestRingGivesMemoryBackWhenIdle(t *testing.T) {
	awaitNoSessions(t)
	k := carrier{name: "soft-dedicated", transport: Soft, dedicated: true}
	c, s := k.streams(t)
	for round := range 3 {
		const size = 4 << 20
		for i, ends := range [][2]*Conn{{c, s}, {s, c}} {
			sent := hang.Start(t, func() { assert.NoError(t, traffic.Write(ends[0], traffic.NewRand(1), uint64(i), size, 64<<10)) })
			awaitFullWindow(t, ends[0])
			require.NoError(t, traffic.Read(ends[1], traffic.NewRand(2), uint64(i), size, 64<<10))
			sent()
		}
		if round == 0 {
			require.Greater(t, ringBytes(t), int64(settings.DefaultRingSize/2), "all of a ring is used")
		}
		messages := 0
		hang.Eventually(t, "the memory is given back", func() bool {
			for _, end := range []*Conn{c, s} {
				_, err := end.s.mux.Link().KeepAlive()
				require.NoError(t, err)
			}
			// One and then the other tells what it has released, as they do when idle.
			ends := [][2]*Conn{{c, s}, {s, c}}[messages%2]
			_, err := ends[0].Write([]byte("x"))
			require.NoError(t, err)
			_, err = ends[1].Read(make([]byte, 1))
			require.NoError(t, err)
			messages++
			return ringBytes(t) <= 2*4<<10
		})
	}
}

func TestRestartOfARingThatIsNotReleasedEndsTheSession(t *testing.T) {
	leak.Check(t)
	for _, held := range []bool{false, true} {
		t.Run(fmt.Sprintf("held %v", held), func(t *testing.T) {
			ln := overSoft.listen(t)
			p := dialRawPeer(t, ln.Addr().String())
			require.NoError(t, p.open(0))
			victim, err := ln.Accept()
			require.NoError(t, err)
			defer victim.Close()
			ping := frame(mux.FramePing, 0, 0, nil)
			if held {
				require.NoError(t, p.send(frame(mux.FrameData, 0, mux.FlagCounted, make([]byte, keepMin))))
				require.NoError(t, p.write(0, ping, immRestart))
				hang.Eventually(t, "end of the session", p.gone)
				require.ErrorIs(t, victim.(*Conn).s.mux.Err(), mux.ErrProtocol)
				return
			}
			// The peer may do it when it was told that all is released, which is
			// counted after Accept was woken.
			hang.Eventually(t, "release of all", func() bool {
				return victim.(*Conn).s.mux.Link().Stats().Released == p.tx.Sent()
			})
			p.tx.Credit(p.tx.Sent())
			require.True(t, p.tx.Restart())
			require.NoError(t, p.write(p.reserve(len(ping)), ping, immRestart))
			require.NoError(t, p.open(1))
			next, err := ln.Accept()
			require.NoError(t, err)
			require.NoError(t, next.Close())
			require.False(t, p.gone())
		})
	}
}
