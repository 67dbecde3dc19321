package rdmahost

import (
	"bytes"
	"testing"

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
