package uverbs

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/internal/binding"
)

func TestABindIsUnderWayUntilACompletionShowsThatItIsNot(t *testing.T) {
	done := verbs.WC{Opcode: verbs.WCBindMW}
	for name, begin := range map[string]uint32{"the first requests": 0, "counters that come round": 1<<32 - 2} {
		t.Run(name, func(t *testing.T) {
			q := &qp{dev: &device{}, sendLimit: 8}
			q.sendDone.Store(begin)
			bind := binding.Place{Count: uint64(begin + 3)}
			for range 3 {
				require.False(t, q.Executed(bind))
				q.completed(&done)
			}
			require.True(t, q.Executed(bind))
			for range 20 {
				q.completed(&done)
				require.True(t, q.Executed(bind))
			}
		})
	}
	q := &qp{dev: &device{}, sendLimit: 8}
	require.False(t, q.Executed(binding.Place{Count: 9}), "a bind without a completion behind a full queue")
	q.failed.Store(true)
	require.True(t, q.Executed(binding.Place{Count: 9}), "it never will be")
	q.failed.Store(false)
	q.resets.Add(1)
	require.True(t, q.Executed(binding.Place{Count: 9}), "the QP is empty, or gone")
}
