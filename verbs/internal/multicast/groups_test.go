package multicast_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/internal/multicast"
)

// A kernel is what a QP is a member of there.
type kernel struct {
	groups []multicast.Group
	stuck  uint16 // LID of the one that cannot be left
	full   uint16 // LID of the one that nobody can join
}

var errFull = errors.New("full")

func (k *kernel) attach(g multicast.Group) error {
	if g.LID == k.full {
		return errFull
	}
	k.groups = append(k.groups, g)
	return nil
}

func (k *kernel) detach(g multicast.Group) error {
	i := slices.Index(k.groups, g)
	if i < 0 || g.LID == k.stuck {
		return verbs.ErrInvalid
	}
	k.groups = slices.Delete(k.groups, i, i+1)
	return nil
}

func (k *kernel) destroy() error {
	if len(k.groups) > 0 {
		return fmt.Errorf("destroy: %w", verbs.ErrBusy)
	}
	return nil
}

func TestAQPThatIsDestroyedLeavesItsGroups(t *testing.T) {
	var k kernel
	var s multicast.Groups
	for lid := uint16(1); lid <= 3; lid++ {
		require.NoError(t, s.Attach(multicast.Group{LID: lid}, k.attach))
	}
	require.NoError(t, s.Detach(multicast.Group{LID: 1}, k.detach))
	require.ErrorIs(t, s.Detach(multicast.Group{LID: 1}, k.detach), verbs.ErrInvalid)
	require.NoError(t, s.Destroy(k.attach, k.detach, k.destroy))
	require.Empty(t, k.groups)
}

func TestAQPThatIsNotDestroyedIsInItsGroupsAgain(t *testing.T) {
	k := kernel{stuck: 2}
	var s multicast.Groups
	var all []multicast.Group
	for lid := uint16(1); lid <= 3; lid++ {
		all = append(all, multicast.Group{LID: lid})
		require.NoError(t, s.Attach(all[lid-1], k.attach))
	}
	for range 2 {
		require.ErrorIs(t, s.Destroy(k.attach, k.detach, k.destroy), verbs.ErrBusy)
		require.ElementsMatch(t, all, k.groups)
	}
	k.stuck = 0
	require.NoError(t, s.Destroy(k.attach, k.detach, k.destroy))
	require.Empty(t, k.groups)
}

func TestAQPThatCannotJoinAgainIsNotInTheGroup(t *testing.T) {
	k := kernel{stuck: 2}
	var s multicast.Groups
	lost, kept := multicast.Group{GID: verbs.GID{0: 0xff, 15: 1}, LID: 1}, []multicast.Group{{LID: 2}, {LID: 3}}
	for _, g := range append(kept, lost) {
		require.NoError(t, s.Attach(g, k.attach))
	}
	k.full = lost.LID
	err := s.Destroy(k.attach, k.detach, k.destroy)
	require.ErrorIs(t, err, verbs.ErrBusy)
	require.ErrorContains(t, err, lost.GID.String()+": full", "the caller is told")
	require.ElementsMatch(t, kept, k.groups)
	err = s.Destroy(k.attach, k.detach, k.destroy)
	require.ErrorIs(t, err, verbs.ErrBusy)
	require.NotContains(t, err.Error(), "full", "it was told once")
	require.ElementsMatch(t, kept, k.groups)

	k.full = 0
	require.NoError(t, s.Attach(lost, k.attach))
	k.stuck = 0
	require.NoError(t, s.Destroy(k.attach, k.detach, k.destroy))
	require.Empty(t, k.groups)
}

func TestAQPWhoseDeviceIsGoneIsInNoGroup(t *testing.T) {
	var k kernel
	var s multicast.Groups
	require.NoError(t, s.Attach(multicast.Group{LID: 1}, k.attach))
	gone := fmt.Errorf("the device was removed: %w", verbs.ErrClosed)
	require.ErrorIs(t, s.Destroy(k.attach, k.detach, func() error { return gone }), gone)
	require.Empty(t, k.groups)
}
