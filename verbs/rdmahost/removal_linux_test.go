package rdmahost

import (
	"bytes"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

func TestOnlyTheRemovalOfOurNodeIsOurs(t *testing.T) {
	for message, want := range map[string]bool{
		"remove@/devices/virtual/infiniband_verbs/uverbs1\x00ACTION=remove\x00":                 true,
		"remove@/devices/pci0000:00/0000:00:02.0/infiniband_verbs/uverbs1\x00ACTION=remove\x00": true,
		"remove@/devices/virtual/infiniband_verbs/uverbs1":                                      true,
		"remove@/devices/virtual/infiniband_verbs/uverbs11\x00":                                 false,
		"remove@/devices/virtual/infiniband_verbs/uverbs1/power\x00":                            false,
		"add@/devices/virtual/infiniband_verbs/uverbs1\x00":                                     false,
		"remove@/devices/virtual/infiniband/uverbs1\x00":                                        false,
		"libudev\x00remove@/devices/virtual/infiniband_verbs/uverbs1":                           false,
		"": false,
	} {
		require.Equal(t, want, isRemoval([]byte(message), "uverbs1"), "%q", message)
	}
}

// A process without sysfs may open devices, and learns of their removal by netlink.
func TestWithoutSysfsADeviceIsNotTakenForRemoved(t *testing.T) {
	dev := &fstest.MapFile{Data: []byte("231:192\n")}
	for _, c := range []struct {
		name  string
		files fstest.MapFS
		lacks bool
	}{
		{"no sysfs", fstest.MapFS{"dev/infiniband/uverbs0": dev}, false},
		{"sysfs with the device", fstest.MapFS{"sys/class/infiniband_verbs/uverbs0/dev": dev}, false},
		{"sysfs with another device", fstest.MapFS{"sys/class/infiniband_verbs/uverbs1/dev": dev}, true},
		{"sysfs without devices", fstest.MapFS{"sys/class/infiniband_verbs/abi_version": dev}, true},
	} {
		require.Equal(t, c.lacks, host{c.files}.lacks("uverbs0"), c.name)
	}
}

// FuzzRemoval reads any message about the kernel's devices.
func FuzzRemoval(f *testing.F) {
	f.Add([]byte("remove@/devices/virtual/infiniband_verbs/uverbs0\x00"))
	f.Add([]byte("remove@"))
	f.Add([]byte("add@/devices/virtual/infiniband_verbs/uverbs0"))
	f.Fuzz(func(t *testing.T, message []byte) {
		if isRemoval(message, "uverbs0") {
			require.True(t, bytes.HasPrefix(message, []byte("remove@")) && bytes.Contains(message, []byte("/uverbs0")), "%q", message)
		}
	})
}
