package uverbs_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/verbstest"
)

func TestConformanceOfSiw(t *testing.T) {
	requireDevice(t, siwDevice)
	allowPinning(t)
	verbstest.Run(t, func(t testing.TB) verbstest.Pair {
		return verbstest.Pair{A: open(t, siwDevice), B: open(t, siwDevice), Connect: func(a, b *verbs.QP) error {
			conns, err := connectSiw(a, b, rcm.ConnParam{
				ResponderResources: 16, InitiatorDepth: 16,
				Access: verbs.AccessRemoteRead | verbs.AccessRemoteWrite,
			})
			t.Cleanup(func() {
				for _, c := range conns {
					if c != nil {
						require.NoError(t, c.Disconnect())
					}
				}
			})
			return err
		}}
	})
}
