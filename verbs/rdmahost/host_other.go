//go:build !linux

package rdmahost

import (
	"errors"
	"fmt"
)

// Describe describes all RDMA devices of this host: none, for this is not
// Linux.
func Describe() ([]Description, error) { return nil, nil }

// ReadCounters reads the counters of a port of a device. Only Linux has any.
func ReadCounters(device string, port uint8) (PortCounters, error) {
	return PortCounters{}, fmt.Errorf("read RDMA counters of %s port %d: %w", device, port, errors.ErrUnsupported)
}

// ReadLimits reads the limits of this process. Only Linux has any.
func ReadLimits() (Limits, error) {
	return Limits{}, fmt.Errorf("read RDMA limits: %w", errors.ErrUnsupported)
}
