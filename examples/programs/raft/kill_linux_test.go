package main

import (
	"context"
	"fmt"
	"net/rpc"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/seed-b9b531af/ramjet/examples/internal/killtest"
	"github.com/seed-b9b531af/ramjet/examples/internal/loopback"
	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// startOver starts a cluster that uses one transport, and waits for a leader.
func startOver(t *testing.T, dialer rnet.Dialer) *cluster {
	t.Helper()
	t.Setenv("RNET_TRANSPORT", string(dialer.Transport)) // for the nodes
	c, err := startCluster(context.Background(), t.TempDir(), dialer)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.stop()) })
	require.Eventually(t, func() bool {
		_, err := c.leader(t.Context())
		return err == nil
	}, time.Minute, pause)
	return c
}

func TestTheBytesDoNotGoOverTCP(t *testing.T) {
	if !loopback.Alone(t) {
		return
	}
	loopback.Compare(t, func(t *testing.T, over rnet.Transport) int64 {
		w := writer{cluster: startOver(t, rnet.Dialer{Transport: over}), name: "entry"}
		require.NoError(t, w.appendAll(t.Context(), 50, t.Output()))
		_, err := w.cluster.agree(t.Context())
		require.NoError(t, err)
		return int64(3 * 50 * len("entry 50"))
	})
}

// kind takes together the errors of clients of a cluster that has no leader, which
// depend on how far the election is, and those of a leader that dies, which depend
// on what it was asked.
func kind(err error) string {
	for _, answer := range []error{raft.ErrNotLeader, raft.ErrLeadershipLost, errNoLeader, rpc.ErrShutdown} {
		if err.Error() == answer.Error() {
			return errNoLeader.Error()
		}
	}
	switch of := killtest.Kind(err); of {
	case killtest.Reset, killtest.Ended, killtest.Lost:
		return errNoLeader.Error()
	default:
		return of
	}
}

// The leader dies, and others answer: it need not come back for that, but
// then it catches up.
func TestAKilledLeaderIsSeenAsOverTCP(t *testing.T) {
	killtest.Compare(t, func(t *testing.T, dialer rnet.Dialer) killtest.Trial {
		c := startOver(t, dialer)
		writers := make([]writer, 4)
		for i := range writers {
			writers[i] = writer{cluster: c, name: fmt.Sprint("writer ", i, " entry")}
		}
		var dead *member
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			entries, err := c.agree(ctx)
			require.NoError(t, err)
			for i := range writers {
				assert.NoError(t, writers[i].verify(entries))
			}
			verifyTransports(t, c, dialer.Transport)
		})
		return killtest.Trial{
			Address: c.members[0].addr,
			Workers: len(writers),
			Do:      func(ctx context.Context, w int) error { return writers[w].append(ctx) },
			Kind:    kind,
			Kill: func() (err error) {
				if dead, err = c.leader(context.Background()); err != nil {
					return err
				}
				return dead.kill()
			},
			Restart: func() error { return dead.start(context.Background()) },
		}
	})
}

// verifyTransports checks what the nodes say of their connections.
func verifyTransports(t *testing.T, c *cluster, over rnet.Transport) {
	t.Helper()
	want := map[rnet.Transport]string{rnet.TCP: "tcp", rnet.Auto: "soft"}[over]
	total := 0
	for i, m := range c.members {
		var got map[string]string
		require.NoError(t, c.call(context.Background(), m, "Transports", struct{}{}, &got))
		for other, transport := range got {
			assert.Equal(t, want, transport, "from node %d to %s", i, other)
			total++
		}
	}
	assert.Positive(t, total)
}
