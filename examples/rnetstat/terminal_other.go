//go:build !linux

package main

import (
	"context"
	"errors"
	"io"
	"os"
	"time"
)

// interactive: only Linux has sessions to look at.
func interactive(io.Writer) bool { return false }

func watch(context.Context, *os.File, []int, time.Duration) error { return errors.ErrUnsupported }
