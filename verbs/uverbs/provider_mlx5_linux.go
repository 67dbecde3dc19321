//go:build amd64 || arm64

package uverbs

import (
	"os"
	"slices"
	"strings"

	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/mlx5"
)

// experimentalVar names the drivers that are not used unless they are named
// there: mlx5, which has run on a model of the device only.
const experimentalVar = "RAMJET_EXPERIMENTAL"

// experimentalDrivers is for those whose device cannot be opened.
const experimentalDrivers = "; mlx5 with " + experimentalVar + "=mlx5"

func init() {
	if slices.Contains(strings.Split(os.Getenv(experimentalVar), ","), "mlx5") {
		drivers[rdmahost.DriverMLX5] = mlx5.Driver{}
	}
}
