package rcm_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/cmtest"
	"github.com/seed-b9b531af/ramjet/rcm/kernelcm"
	"github.com/seed-b9b531af/ramjet/rcm/softcm"
	_ "github.com/seed-b9b531af/ramjet/verbs/soft"
	_ "github.com/seed-b9b531af/ramjet/verbs/uverbs"
)

// The tests of this package are about connections as such, and run over every backend.

// fabricOn returns the fabric of a device by its name.
func fabricOn(device string) rcm.Fabric {
	if strings.HasPrefix(device, "soft") {
		return softcm.New(softcm.Config{Device: device})
	}
	return kernelcm.New(kernelcm.Config{Device: device})
}

// softAt is the software HCA's fabric.
func softAt(host string) *cmtest.Fabric {
	return &cmtest.Fabric{Fabric: softcm.New(softcm.Config{}), Device: "soft0", Host: netip.MustParseAddr(host)}
}

// overFabrics runs a test over the software HCA or, in the virtual machine, over each
// of its devices.
func overFabrics(t *testing.T, test func(t *testing.T, f *cmtest.Fabric)) {
	if cmtest.HaveDevices() {
		cmtest.OverAll(t, cmtest.FabricsOn(t, fabricOn), test)
		return
	}
	for _, host := range []string{"127.0.0.1", "::1"} {
		f := softAt(host)
		t.Run(f.Title(), func(t *testing.T) { test(t, f) })
	}
}
