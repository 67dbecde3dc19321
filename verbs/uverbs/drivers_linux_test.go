package uverbs

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/mlx5"
)

func TestAnExperimentalDriverIsUsedOnlyIfItIsNamed(t *testing.T) {
	for _, c := range []struct {
		variable string
		on       bool
	}{{"", false}, {"mlx5", true}, {"other,mlx5", true}, {"mlx", false}, {"rxe", false}, {"mlx5-blueflame", true}, {"mlx5,mlx5-blueflame", true}} {
		t.Setenv(experimentalVar, c.variable)
		drv, err := driverOf(rdmahost.Device{Name: "mlx5_0", Driver: "mlx5"})
		if c.on {
			require.NoError(t, err)
			require.Equal(t, mlx5.Driver{BlueFlame: strings.Contains(c.variable, "blueflame")}, drv)
		} else {
			require.ErrorIs(t, err, verbs.ErrUnsupported)
			require.ErrorContains(t, err, "(rxe, siw, mlx5 with RAMJET_EXPERIMENTAL=mlx5)")
		}
		require.Equal(t, c.on, Drives("mlx5"), c.variable)
	}
	require.True(t, Experimental("mlx5"))
	require.False(t, Experimental("rxe"))
}
