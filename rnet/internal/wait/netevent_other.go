//go:build !linux

package wait

import (
	"errors"
	"time"
)

type event struct{}

func newEvent() *event { return nil }

func (*event) signal() {}

func (*event) wait(time.Time) error { return errors.ErrUnsupported }

func (*event) close() {}
