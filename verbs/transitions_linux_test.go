package verbs_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/race"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/verbstest"
)

// TestEveryMaskOfEveryTransitionIsJudgedAsTheKernelDoes asks for all 2^21 sets of attributes, and
// for a few of transitions that do not exist.
func TestEveryMaskOfEveryTransitionIsJudgedAsTheKernelDoes(t *testing.T) {
	step := verbs.QPAttrMask(1)
	if race.Enabled || testing.Short() {
		step = 1009 // a prime: all bits come and go
	}
	const all = verbs.QPAttrDestQPN<<1 - 1
	for name, typ := range map[string]verbs.QPType{"RC": verbs.QPTypeRC, "UC": verbs.QPTypeUC, "UD": verbs.QPTypeUD,
		"XRC initiator": verbs.QPTypeXRCInitiator, "XRC target": verbs.QPTypeXRCTarget} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			allowed, wrong := 0, 0
			for from := verbs.QPStateReset; from <= verbs.QPStateErr; from++ {
				for to := verbs.QPStateReset; to <= verbs.QPStateErr+1; to++ {
					tr := verbstest.Transition{Type: typ, From: from, To: to}
					table := tr.Rule()
					attr := verbs.QPAttr{State: to, CurState: from}
					step := step
					if !table.Exists() {
						step = 1009 // it is refused whatever the mask
					}
					for mask := verbs.QPAttrMask(0); mask <= all; mask += step {
						if mask&verbs.QPAttrState == 0 && from != to {
							continue // it is a transition to the same state
						}
						want := table.Allows(mask)
						if want {
							allowed++
						}
						if verbs.Allows(typ, from, &attr, mask) != want {
							if wrong++; wrong < 10 {
								tr.Mask = mask
								t.Errorf("%v: the kernel allows: %v", tr, want)
							}
						}
					}
				}
			}
			require.Greater(t, allowed, 10/int(step), "nothing is allowed")
		})
	}
}
