package uverbs_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs/internal/abilities"
)

// TestDevicesAreAsInTheTable compares what docs/verbs.md says.
func TestDevicesAreAsInTheTable(t *testing.T) {
	for _, driver := range []string{"rxe", "siw"} {
		t.Run(driver, func(t *testing.T) {
			ctx := open(t, driver+"0")
			require.NoError(t, abilities.Compare(ctx, driver+", Linux "+kernelSeries(t)))
		})
	}
}

// kernelSeries is "6.1" for a kernel 6.1.170.
func kernelSeries(t testing.TB) string {
	t.Helper()
	var name unix.Utsname
	require.NoError(t, unix.Uname(&name))
	parts := strings.SplitN(unix.ByteSliceToString(name.Release[:]), ".", 3)
	require.GreaterOrEqual(t, len(parts), 2)
	return parts[0] + "." + parts[1]
}
