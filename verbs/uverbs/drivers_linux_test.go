package uverbs

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
)

func TestAnExperimentalDriverIsUsedOnlyIfItIsNamed(t *testing.T) {
	for _, c := range []struct {
		variable string
		on       bool
	}{{"", false}, {"mlx5", true}, {"other,mlx5", true}, {"mlx", false}, {"rxe", false}} {
		t.Setenv(experimentalVar, c.variable)
		drv, err := driverOf(rdmahost.Device{Name: "mlx5_0", Driver: "mlx5"})
		if c.on {
			require.NoError(t, err)
			require.NotNil(t, drv)
		} else {
			require.ErrorIs(t, err, verbs.ErrUnsupported)
			require.ErrorContains(t, err, "(rxe, siw, mlx5 with RAMJET_EXPERIMENTAL=mlx5)")
		}
		require.Equal(t, c.on, Drives("mlx5"), c.variable)
	}
	require.True(t, Experimental("mlx5"))
	require.False(t, Experimental("rxe"))
}
