//go:build !linux

package softcm

import (
	"errors"
	"fmt"
	"runtime"
)

// UnixSocketAt fails: there is no software HCA on this system.
func UnixSocketAt(network, address string) (UnixSocket, error) {
	return UnixSocket{}, fmt.Errorf("rcm: no software HCA on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}

// MayConnect fails: there is no software HCA on this system.
func (s UnixSocket) MayConnect() error { return errors.ErrUnsupported }
