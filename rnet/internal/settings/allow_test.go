package settings

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/rcm/softcm"
)

func TestRulesComeBackAsTheyWereGiven(t *testing.T) {
	all := []softcm.Rules{
		{},
		{Users: []uint32{1, 2}},
		{Users: []uint32{1}, Groups: []uint32{2}},
		{Groups: []uint32{1, 2}},
		{Groups: []uint32{1}, Cgroups: []uint64{2}},
		{Cgroups: []uint64{1 << 32}},
		{Key: []byte("\x01\x00\x00\x00")},
		{Users: []uint32{1}, Groups: []uint32{2}, Cgroups: []uint64{3}, Key: []byte("key")},
	}
	seen, names := map[Allow]bool{}, map[string]bool{}
	for _, rules := range all {
		a := allowOf(rules)
		got := a.Rules()
		require.ElementsMatch(t, rules.Users, got.Users)
		require.ElementsMatch(t, rules.Groups, got.Groups)
		require.ElementsMatch(t, rules.Cgroups, got.Cgroups)
		require.Equal(t, string(rules.Key), string(got.Key))
		seen[a], names[a.Name()] = true, true
	}
	require.Len(t, seen, len(all))
	require.Len(t, names, len(all))
	require.Equal(t, Allow{}, allowOf(softcm.Rules{}))
	require.Equal(t, allowOf(softcm.Rules{Users: []uint32{2, 1, 2}}), allowOf(softcm.Rules{Users: []uint32{1, 2}}))
}
