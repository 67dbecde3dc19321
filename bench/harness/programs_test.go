package harness

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/container"
	"github.com/seed-b9b531af/ramjet/internal/skip"
	"github.com/stretchr/testify/require"
)

// runPrograms runs the page of programs, as short as it can be, and returns
// what -json has written.
func runPrograms(t *testing.T, run string, args ...string) (r report, table string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "out.json")
	chosen := "tcp,ramjet"
	if unixWorks() {
		chosen = "tcp,unix,ramjet"
	}
	args = append([]string{programsPage, "-transport", chosen, "-rounds", "1", "-duration", "20ms", "-warmup", "1ms", "-json", file, "-run", run}, args...)
	var stdout bytes.Buffer
	var stderr lockedBuffer
	require.NoError(t, Run(t.Context(), args, &stdout, &stderr), &stderr)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &r))
	for _, res := range r.Results {
		require.Contains(t, stdout.String(), res.Title)
		for _, c := range res.cells() {
			require.Empty(t, c.LeftOut, res.Name)
			require.Len(t, c.Rounds, 1, res.Name)
			for _, m := range res.Metrics {
				require.Contains(t, c.Median, m, res.Name)
			}
		}
	}
	return r, stdout.String()
}

func TestEachProgramMakesCallsOneAtATimeAndMany(t *testing.T) {
	r, table := runPrograms(t, "^[a-z0-9]+/(1|64)$")
	require.Len(t, r.Results, 2*len(programs)+2+1)
	require.Contains(t, table, "ramjet is worse than TCP (<) in")
}

func TestContainersAreMeasuredBesideOne(t *testing.T) {
	a, b, err := container.Pair()
	skip.Because(t, err)
	a.Close()
	b.Close()
	var together, between cell
	var table string
	for range 10 {
		var r report
		r, table = runPrograms(t, "^echo/1$", "-containers", "-transport", "ramjet")
		require.Equal(t, []string{"ramjet", "ramjet-apart"}, r.Transports)
		together, between = r.Results[0].Cells[0], r.Results[0].Cells[1]
		// a busy machine may take longer than a dial waits
		if together.FellBack+between.FellBack == 0 {
			break
		}
	}
	require.Contains(t, together.Used, "soft")
	require.Contains(t, between.Used, "soft")
	require.Contains(t, table, "ramjet apart against ramjet, median of 1 tests (from the worst to the best): per second")
}

func TestEachProcessHasAProfileOfItsOwn(t *testing.T) {
	dir := t.TempDir()
	runPrograms(t, "^proxy/1$", "-transport", "tcp,ramjet", "-cpuprofile", dir)
	for _, transport := range []string{"tcp", "ramjet"} {
		for _, r := range []role{serving, dialing, answering} {
			require.FileExists(t, profilePath(dir, "proxy/1", transport, r))
		}
	}
}

func TestCallsArePaced(t *testing.T) {
	r, _ := runPrograms(t, "^(http1|proxy)/64/20000$", "-duration", "200ms", "-transport", "tcp")
	require.Len(t, r.Results, 2)
	for _, res := range r.Results {
		require.LessOrEqual(t, res.Cells[0].Median[rate], 20_000*1.01, res.Name)
		require.Contains(t, res.Cells[0].Median, lateness)
	}
}

func TestManyClientProcessesAndWhatStandsBesideThem(t *testing.T) {
	r, table := runPrograms(t, "^(echo/1/20clients|echo/1/20clients/10000|memory/1/20clients|http1/1/busy|reader/1/beside|echo/1/64B/10us(/local)?)$")
	require.Len(t, r.Results, 7)
	require.Contains(t, table, "  the worst client")
	for _, res := range r.Results {
		for _, c := range res.Cells {
			switch {
			case res.Workload.Kind == sessions:
				require.EqualValues(t, 20, c.Opened)
				require.Positive(t, c.Median[descriptors])
			case res.Workload.Clients > 1:
				require.GreaterOrEqual(t, c.Median[worstP99], c.Median[p50], res.Name)
				require.EqualValues(t, 20, c.Opened)
			}
		}
	}
}

func TestTheUsualProgramsTakeTwoMinutes(t *testing.T) {
	o, err := parseProgramOptions(nil, io.Discard)
	require.NoError(t, err)
	var total time.Duration
	names := map[string]bool{}
	for _, t := range o.tests() {
		round := t.Workload.Duration + t.Workload.Warmup
		if t.Floor == nil {
			round *= 3
		}
		total += time.Duration(o.Rounds) * round
		names[t.Name] = true
	}
	require.Less(t, total, 2*time.Minute)
	o.All = true
	require.Greater(t, len(o.tests()), len(names))
	for _, test := range o.tests() {
		delete(names, test.Name)
	}
	require.Empty(t, names)
}

func TestNamesOfProgramTestsAreUnique(t *testing.T) {
	o, err := parseProgramOptions([]string{"-all"}, io.Discard)
	require.NoError(t, err)
	seen := map[string]bool{}
	for _, test := range o.tests() {
		require.False(t, seen[test.Name], test.Name)
		seen[test.Name] = true
	}
}

func TestProgramsAreListedWithoutARun(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, Run(t.Context(), []string{programsPage, "-list", "-run", "rpc/1$"}, &out, io.Discard))
	require.Equal(t, []string{"rpc/1", "net/rpc,", "1", "call"}, strings.Fields(out.String()))
}

func TestBadProgramOptionsAreRefused(t *testing.T) {
	for _, tc := range []struct {
		args []string
		says string
	}{
		{[]string{"-run", "nothing of that kind"}, "no test is chosen"},
		{[]string{"-run", "("}, "missing closing )"},
		{[]string{"-rounds", "0"}, "-rounds must be"},
		{[]string{"http1"}, `unexpected argument "http1"`},
	} {
		_, err := parseProgramOptions(tc.args, io.Discard)
		require.ErrorContains(t, err, tc.says, "%q", tc.args)
	}
}

func TestProgramTableMarksWhatIsWorseThanTCP(t *testing.T) {
	r := sample()
	r.Options.Page = programsPage
	r.Results = r.Results[1:]
	r.Results[0].Metrics = []metric{rate, p50, p99, cpuPerOp}
	r.Results[0].Cells[2].Median = map[metric]float64{rate: 180e3, p99: 3.2e6, cpuPerOp: 7e3}
	var out bytes.Buffer
	require.NoError(t, r.writeTable(&out))
	require.Regexp(t, `64 connections +200 k/s +-\* +0\.90< +- +-\* +- +3\.00 ms +-\* +0\.94x +14\.0 us +-\* +2\.00x\n`, out.String())
	require.Contains(t, out.String(), "ramjet is worse than TCP (<) in 1 of 3 figures, in 1 of 1 tests.")
	require.Contains(t, out.String(), "Unix is worse than TCP (<) in 0 of 0 figures, in 0 of 0 tests.", "it has failed")
}
