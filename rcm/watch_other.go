//go:build !linux

package rcm

import (
	"errors"
	"fmt"
	"runtime"
)

// WatchDevice fails: there are no RDMA devices on this system.
func WatchDevice(name string) (*DeviceWatch, error) {
	return nil, fmt.Errorf("rcm: watch device %s: %w: no RDMA devices on %s: %w", name, ErrNoRoute, runtime.GOOS, errors.ErrUnsupported)
}
