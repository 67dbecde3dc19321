package uverbs

import (
	"fmt"
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
			require.ErrorContains(t, err, "rxe, siw, mlx5 with RAMJET_EXPERIMENTAL=mlx5")
		}
		require.Equal(t, c.on, Drives("mlx5"), c.variable)
	}
	require.True(t, Experimental("mlx5"))
	require.False(t, Experimental("rxe"))
}

func TestADriverIsUsedOnlyForTheVersionsThatItSpeaks(t *testing.T) {
	t.Setenv(experimentalVar, "mlx5-blueflame")
	for name, version := range map[string]uint32{"rxe": 2, "siw": 1, "mlx5": 1} {
		for _, v := range []uint32{0, version} { // 0: not known
			_, err := driverOf(rdmahost.Device{Name: name, Driver: name, ABI: v})
			require.NoError(t, err)
		}
		_, err := driverOf(rdmahost.Device{Name: name, Driver: name, ABI: version + 1})
		require.ErrorIs(t, err, verbs.ErrUnsupported)
		require.ErrorContains(t, err, fmt.Sprintf("speaks version %d of its ABI, and ramjet %d to %d", version+1, version, version))
	}
}
