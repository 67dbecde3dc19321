package verbsperf

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMain lets the test program be the server that the client starts.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == Page {
		Main(os.Args[2:])
	}
	os.Exit(m.Run())
}

func devices() []string {
	if slices.Contains(strings.Split(os.Getenv("RAMJET_DEVICES"), ","), "rxe0") {
		return []string{"soft0", "rxe0"}
	}
	return []string{"soft0"}
}

func TestEveryTestRuns(t *testing.T) {
	for _, device := range devices() {
		for name, more := range map[string][]string{
			"one QP":         nil,
			"several":        {"-qps", "3", "-depth", "4"},
			"both ways":      {"-bidirectional", "-qps", "2"},
			"events, inline": {"-events", "-inline", "64", "-depth", "8"},
		} {
			t.Run(device+"/"+name, func(t *testing.T) {
				var out bytes.Buffer
				args := append([]string{"-device", device, "-n", "40", "-sizes", "1,64,5000", "-json"}, more...)
				require.NoError(t, Run(t.Context(), args, &out, os.Stderr))
				var lines []map[string]any
				require.NoError(t, json.Unmarshal(out.Bytes(), &lines))
				require.Len(t, lines, 4*2*3+2)
				for _, line := range lines {
					column := "BW average[MB/sec]"
					if strings.HasSuffix(line["test"].(string), "_lat") {
						column = "t_typical[usec]"
					}
					require.Greater(t, line[column], 0.0, "%v", line)
				}
			})
		}
	}
}

func TestTheTableHasTheNamesOfPerftest(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, Run(t.Context(), []string{"-n", "10", "-sizes", "8", "-test", "write_imm_lat,read_bw"}, &out, os.Stderr))
	for _, want := range []string{
		"write_imm_lat: 1 QP", "#bytes", "#iterations", "t_min[usec]", "t_max[usec]", "t_typical[usec]", "t_avg[usec]", "t_stdev[usec]",
		"99% percentile[usec]", "99.9% percentile[usec]", "read_bw: 1 QP", "BW peak[MB/sec]", "BW average[MB/sec]", "MsgRate[Mpps]",
	} {
		require.Contains(t, out.String(), want)
	}
}

func TestFiguresAreThoseOfTheTimes(t *testing.T) {
	times := make([]time.Duration, 100)
	for i := range times {
		times[i] = time.Duration(100-i) * 2 * time.Microsecond
	}
	r := latencies(spec{Test: "send_lat"}, times)
	want := map[string]float64{"t_min[usec]": 1, "t_max[usec]": 100, "t_typical[usec]": 51, "t_avg[usec]": 50.5, "99% percentile[usec]": 100}
	for _, c := range r.columns {
		if w, ok := want[c.name]; ok {
			require.InDelta(t, w, c.value, 1e-6, c.name)
		}
	}
	marks := make([]time.Duration, 2*parts)
	for i := range parts {
		marks[i], marks[parts+i] = time.Duration(i)*time.Second, time.Duration(i+1)*time.Second
	}
	marks[7], marks[parts+7] = 7*time.Second, 7*time.Second+500*time.Millisecond // twice as fast
	r = bandwidth(spec{Test: "write_bw", Size: 1 << 20, Iterations: 8 * parts, QPs: 2}, marks, nil)
	require.InDelta(t, 32, r.columns[0].value, 1e-6)
	require.InDelta(t, 16, r.columns[1].value, 1e-6)
	require.InDelta(t, 16e-6, r.columns[2].value, 1e-9)
}

func TestOptionsThatCannotBe(t *testing.T) {
	for _, args := range [][]string{{"-test", "no_lat"}, {"-sizes", "0"}, {"-sizes", "x"}, {"-n", "0"}, {"-listen", "a", "-dial", "b"}, {"more"}} {
		require.Error(t, Run(t.Context(), args, &bytes.Buffer{}, &bytes.Buffer{}), "%q", args)
	}
	require.Error(t, (&spec{Test: "send_lat", Size: 1, Iterations: 1, QPs: 1 << 20, Depth: 1}).check())
}
