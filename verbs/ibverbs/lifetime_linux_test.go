//go:build amd64 || arm64

package ibverbs_test

import (
	"os"
	"testing"

	"github.com/seed-b9b531af/ramjet/verbs/internal/conformance"
)

// The library frees the memory of what is closed, whoever is using it.
func TestCloseMayComeAtAnyMoment(t *testing.T) {
	device := os.Getenv("RAMJET_DEVICES")
	if device == "" {
		t.Skip("RAMJET_DEVICES names no device")
	}
	conformance.CloseAtAnyMoment(t, device)
}
