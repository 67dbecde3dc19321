//go:build !linux

package rnet

import (
	"math"

	"github.com/seed-b9b531af/ramjet/fallback"
)

// checkPairing is for systems that have no sessions.
func checkPairing(fallback.Transport) error { return nil }

func descriptorLimit() int { return math.MaxInt }

func procIsMissing() bool { return false }
