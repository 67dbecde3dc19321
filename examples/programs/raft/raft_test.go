package main

import (
	"bytes"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed-b9b531af/ramjet/examples/internal/killtest"
	"github.com/seed-b9b531af/ramjet/examples/internal/programtest"
	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/stretchr/testify/require"
)

// TestMain lets the test program be the nodes.
func TestMain(m *testing.M) { programtest.Main(m, "-listen", main) }

func TestTheClusterSurvivesTheDeathOfItsLeader(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"-n", "50"}, &out))
	require.Contains(t, out.String(), "the leader is dead\n50 entries in")
	require.Contains(t, out.String(), "all three have the same")
	killtest.RequireTransport(t, out.String(), ": %s\n", rnet.Soft)
	// A node that starts opens its listeners one after the other: a dial that is
	// held up for as long as that takes finds the last of them alone, TCP's.
	if strings.Contains(out.String(), ": soft\n") {
		require.LessOrEqual(t, strings.Count(out.String(), ": tcp\n"), 1, "all have what some have")
	}
}

func TestANodeByItselfIsAClusterOfOne(t *testing.T) {
	addr := killtest.FreeAddress(t)
	m := member{addr: killtest.FreeAddress(t)}
	m.args = []string{"-listen", m.addr, "-node", addr, "-cluster", addr, "-dir", filepath.Join(t.TempDir(), "node")}
	require.NoError(t, m.start(t.Context()))
	w := writer{cluster: &cluster{members: []*member{&m}}, name: "entry"}
	require.NoError(t, w.appendAll(t.Context(), 3, t.Output()))
	require.NoError(t, w.cluster.stop())
	require.ErrorContains(t, run(t.Context(), []string{"-listen", addr}, io.Discard), "needs -node")
}

func TestVerifyNoticesWhatIsLostDoubledOrOutOfOrder(t *testing.T) {
	w := writer{name: "e", tried: 4, stored: []int{1, 2, 4}} // the third may be stored or not
	for _, entries := range []string{"e 1,e 2,e 4", "e 1,x 1,e 2,e 3,e 4"} {
		require.NoError(t, w.verify(strings.Split(entries, ",")))
	}
	for entries, want := range map[string]string{
		"e 1,e 4":             `"e 2" is lost`,
		"e 1,e 4,e 2":         `"e 4" is out of order`,
		"e 1,e 2,e 2,e 4":     `"e 2" is there twice`,
		"e 1,e 2,e 3,e 4,e 3": `"e 3" is there twice`,
	} {
		require.ErrorContains(t, w.verify(strings.Split(entries, ",")), want)
	}
}
