package uverbs_test

import (
	"os"
	"strings"
	"testing"

	"github.com/seed-b9b531af/ramjet/rcm/iwarptest"
	"github.com/seed-b9b531af/ramjet/verbs/internal/conformance"
)

// TestConformance is what a driver has to pass, and takes any device as it is:
//
//	RAMJET_DEVICES=irdma0 go test ./verbs/uverbs -run Conformance
func TestConformance(t *testing.T) {
	devices := os.Getenv("RAMJET_DEVICES")
	if devices == "" {
		t.Skip(needsDevices)
	}
	for device := range strings.SplitSeq(devices, ",") {
		t.Run(device, func(t *testing.T) { conformance.Run(t, device, iwarptest.Connector) })
	}
}
