//go:build !amd64 && !arm64

package mlx5

import (
	"fmt"
	"runtime"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
)

// Driver opens no device here: the barriers that stores to pages of the device need
// (barrier_amd64.s, barrier_arm64.s) are not written for this processor.
type Driver struct {
	// BlueFlame is an option elsewhere.
	BlueFlame bool
}

// Open fails.
func (Driver) Open(driver.Memory, func(driver.Udata) error) (driver.Context, error) {
	return nil, fmt.Errorf("%w: the driver for ConnectX is for amd64 and arm64, not for %s", verbs.ErrUnsupported, runtime.GOARCH)
}
