package main

import (
	"bytes"
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
