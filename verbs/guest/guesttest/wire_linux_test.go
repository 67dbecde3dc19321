package guesttest

import (
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// signPort is where the peer listens when its C program does.
const signPort = ":18514"

// TestPingPongInCCrossesTheWire runs in both guests of a pair: the peer serves, the
// other one asks.
func TestPingPongInCCrossesTheWire(t *testing.T) {
	devices(t)
	peer, ok := os.LookupEnv("RAMJET_PEER")
	if !ok {
		t.Skip("RAMJET_PEER is not set: this runs in a pair of guests only (-pair)")
	}
	args := []string{"-d", "rxe0", "-g", "1", "-c", "-n", "20", "-s", "1024"}
	if os.Getenv("RAMJET_ROLE") == "peer" {
		s := serve(t, tcpListener(t, "18515"), "ibv_rc_pingpong", args...)
		// The C program takes one connection only: another port says that it listens.
		sign, err := net.Listen("tcp", signPort)
		require.NoError(t, err)
		defer sign.Close()
		require.Contains(t, s.result(t), "20 iters")
		return
	}
	require.Eventually(t, func() bool {
		conn, err := net.DialTimeout("tcp", peer+signPort, time.Second)
		if err != nil {
			return false
		}
		return conn.Close() == nil
	}, patience, 100*time.Millisecond)
	require.Contains(t, output(t, "ibv_rc_pingpong", append(args, peer)...), "20 iters")
}
