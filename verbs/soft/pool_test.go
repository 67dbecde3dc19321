//go:build linux

package soft_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft"
)

func TestPoolsHaveLimitsForEachDeviceAndParents(t *testing.T) {
	soft.EnableTestDevice()
	var whole verbs.Pool
	tenant, other := verbs.Pool{Parent: &whole}, verbs.Pool{Parent: &whole}
	require.Zero(t, tenant.SetDeviceLimit("soft0", verbs.Usage{Objects: 1}))
	whole.SetDeviceLimit(soft.TestDeviceName, verbs.Usage{Objects: 2})
	whole.SetLimit(verbs.Usage{Handles: 3})
	open := func(p *verbs.Pool, name string) *verbs.Context {
		t.Helper()
		c, err := p.Open(name)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, c.Close()) })
		return c
	}
	a, b, c := open(&tenant, "soft0"), open(&tenant, soft.TestDeviceName), open(&other, soft.TestDeviceName)
	_, err := other.Open("soft0")
	require.ErrorContains(t, err, "hca_handle, 3 of 3 in use")
	require.Equal(t, verbs.Usage{Handles: 1}, other.Usage(), "what the parent has refused does not count")
	for _, ctx := range []*verbs.Context{a, b, c} {
		_, err := ctx.AllocPD()
		require.NoError(t, err)
	}
	_, err = a.AllocPD()
	require.ErrorIs(t, err, verbs.ErrPoolLimit)
	require.ErrorContains(t, err, "hca_object of soft0, 1 of 1 in use")
	_, err = b.AllocPD()
	require.ErrorContains(t, err, "hca_object of "+soft.TestDeviceName+", 2 of 2 in use")
	require.Equal(t, map[string]verbs.Usage{"soft0": {Handles: 1, Objects: 1}, soft.TestDeviceName: {Handles: 1, Objects: 1}}, tenant.DeviceUsage())
	require.Equal(t, map[string]verbs.Usage{"soft0": {Handles: 1, Objects: 1}, soft.TestDeviceName: {Handles: 2, Objects: 2}}, whole.DeviceUsage())
	require.Equal(t, verbs.Usage{Handles: 3, Objects: 3}, whole.Usage())
	require.NoError(t, c.Close())
	_, err = b.AllocPD()
	require.NoError(t, err)
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
	require.Empty(t, tenant.DeviceUsage())
	require.Empty(t, whole.DeviceUsage())
	require.Zero(t, whole.Usage())
}
