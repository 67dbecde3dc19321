//go:build !linux

package uverbs

import (
	"errors"
	"fmt"
)

// ReadCounters reads the counters of a port of a device. Only Linux has any.
func ReadCounters(device string, port uint8) (PortCounters, error) {
	return PortCounters{}, fmt.Errorf("uverbs: read counters of %s port %d: %w", device, port, errors.ErrUnsupported)
}
