//go:build !linux

package rnet

import "github.com/seed-b9b531af/ramjet/fallback"

// checkPairing is for systems that have no sessions.
func checkPairing(fallback.Transport) error { return nil }

func procIsMissing() bool { return false }
