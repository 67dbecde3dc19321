package uverbs

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
)

func TestIWARPQPsAreMovedByTheirConnectionManager(t *testing.T) {
	const (
		reset, init, rtr, rts = verbs.QPStateReset, verbs.QPStateInit, verbs.QPStateRTR, verbs.QPStateRTS
		sqd, failed           = verbs.QPStateSQD, verbs.QPStateErr
	)
	for _, c := range []struct {
		from, to verbs.QPState
		want     error
	}{
		{reset, init, nil}, {init, init, nil}, {init, failed, nil}, {rts, failed, nil}, {failed, failed, nil}, {rts, rts, nil},
		{reset, failed, verbs.ErrInvalid},
		{init, rtr, verbs.ErrUnsupported}, {rtr, rts, verbs.ErrUnsupported}, {rts, sqd, verbs.ErrUnsupported},
		{rts, reset, verbs.ErrUnsupported}, {failed, reset, verbs.ErrUnsupported}, {failed, init, verbs.ErrUnsupported},
	} {
		require.ErrorIs(t, iwarpTransition(c.from, c.to), c.want, "%v to %v", c.from, c.to)
	}
}
