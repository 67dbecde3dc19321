//go:build linux

package soft_test

import (
	"testing"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft"
	"github.com/seed-b9b531af/ramjet/verbs/verbstest"
	"github.com/stretchr/testify/require"
)

// Two QPs of one process pair directly, those of two processes over a socket.
// The tests must not see a difference.

func TestSemanticsWithinOneProcess(t *testing.T) {
	verbstest.Run(t, openPair)
}

func TestSemanticsBetweenStrangers(t *testing.T) {
	verbstest.Run(t, func(t testing.TB) verbstest.Pair {
		soft.PairAsStrangers(t)
		return openPair(t)
	})
}

func TestSemanticsWithinOneProcessSingleThreaded(t *testing.T) {
	verbstest.Run(t, singleThreaded)
}

func TestSemanticsBetweenStrangersSingleThreaded(t *testing.T) {
	verbstest.Run(t, func(t testing.TB) verbstest.Pair {
		soft.PairAsStrangers(t)
		return singleThreaded(t)
	})
}

func singleThreaded(t testing.TB) verbstest.Pair {
	p := openPair(t)
	p.SingleThreaded = true
	return p
}

func openPair(t testing.TB) verbstest.Pair {
	open := func() *verbs.Context {
		ctx, err := verbs.Open(soft.DeviceName)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, ctx.Close()) })
		return ctx
	}
	return verbstest.Pair{A: open(), B: open()}
}
