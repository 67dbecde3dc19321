//go:build !linux

package uverbs

import (
	"errors"
	"fmt"
)

// ReadLimits reads the limits of this process. Only Linux has any.
func ReadLimits() (Limits, error) {
	return Limits{}, fmt.Errorf("uverbs: read limits: %w", errors.ErrUnsupported)
}
