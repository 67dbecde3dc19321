package ibverbs_test

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/bench/verbsperf"
)

// What bench verbs measures runs over the library too, with both ends on it.
func TestBenchVerbs(t *testing.T) {
	device := os.Getenv("RAMJET_DEVICES")
	if device == "" {
		t.Skip("RAMJET_DEVICES names no device")
	}
	for name, how := range map[string]string{"exchange": "-bidirectional", "by rcm": "-rcm"} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			require.NoError(t, verbsperf.Run(t.Context(), []string{
				"-device", device, "-n", "30", "-test", "send_lat,write_bw,read_lat,atomic_lat", "-sizes", "64", "-qps", "2", "-depth", "8", "-json", how,
			}, &out, os.Stderr))
			var lines []map[string]any
			require.NoError(t, json.Unmarshal(out.Bytes(), &lines))
			require.Len(t, lines, 4)
		})
	}
}
