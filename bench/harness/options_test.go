package harness

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestOptionsWithoutArgumentsChooseEverything(t *testing.T) {
	o, err := parseOptions(nil, io.Discard)
	require.NoError(t, err)
	require.Equal(t, []int{1, 64, 1000}, o.Conns)
	require.Equal(t, []int{64, 4096}, o.Sizes)
	require.Len(t, o.Tests, len(groups)-1)
	require.NotContains(t, o.Tests, "gnetidle")
	require.Equal(t, []int{1, 1000}, o.EventConns)
	require.Equal(t, []int{64}, o.EventSizes)
	require.Contains(t, o.Transports, "tcp")

	var total time.Duration
	for _, t := range suite(o) {
		round := t.Workload.Duration + t.Workload.Warmup
		if t.Floor == nil {
			round *= 3
		}
		total += time.Duration(o.Rounds) * round
	}
	require.Less(t, total, 50*time.Second, "a run without arguments is to take less than a minute")
}

func TestOptionsAreRead(t *testing.T) {
	o, err := parseOptions([]string{
		"-test", "idle,rtt", "-transport", "unix,tcp", "-size", "16, 2KiB,1MiB", "-message", "128",
		"-bulk", "4MiB", "-conns", "7", "-dialers", "3", "-streams", "2,4", "-idle", "9",
		"-duration", "1s", "-warmup", "0s", "-rounds", "3", "-profile", "latency", "-rate", "1e4",
	}, io.Discard)
	require.NoError(t, err)
	require.Equal(t, names{"rtt", "idle"}, o.Tests, "in the order of the table")
	require.Equal(t, names{"tcp", "unix"}, o.Transports)
	require.Equal(t, []int{16, 2048, 1 << 20}, o.Sizes)
	require.Equal(t, 128, o.Message)
	require.Equal(t, 4<<20, o.Bulk)
	require.Equal(t, "open loop at 10.0 k/s for round trips and requests", o.loop())

	tests := suite(o)
	require.Equal(t, []string{"rtt-16", "rtt-2048", "rtt-1048576", "idle-9"}, []string{tests[0].Name, tests[1].Name, tests[2].Name, tests[3].Name})
	require.Equal(t, workload{Kind: roundTrips, Size: 16, Conns: 1, Duration: time.Second, Rate: 1e4, Profile: "latency"}, tests[0].Workload)
	require.Zero(t, tests[3].Workload.Rate, "idle connections have no rate")
}

func TestGnetTestsAreEachSizeWithEachNumberOfConnections(t *testing.T) {
	o, err := parseOptions([]string{"-test", "gnetidle,gnet", "-gnetconns", "1,10000", "-gnetsize", "64,1KiB", "-loops", "2", "-rate", "1000"}, io.Discard)
	require.NoError(t, err)
	var found []string
	for _, test := range suite(o) {
		found = append(found, test.Title)
		require.Equal(t, 2, test.Workload.Loops)
		require.Zero(t, test.Workload.Rate, "handlers answer in a closed loop")
	}
	require.Equal(t, []string{
		"gnet echo, 64 B, 1 connection, 2 loops",
		"gnet echo, 64 B, 10000 connections, 2 loops",
		"gnet echo, 1 KiB, 1 connection, 2 loops",
		"gnet echo, 1 KiB, 10000 connections, 2 loops",
		"gnet, idle connection, 1000 open, 2 loops",
	}, found)
}

func TestParkedTestForbidsSpinningWhateverTheProfile(t *testing.T) {
	o, err := parseOptions([]string{"-test", "parked", "-profile", "latency"}, io.Discard)
	require.NoError(t, err)
	require.Equal(t, "efficient", suite(o)[0].Workload.Profile)
}

func TestBadOptionsAreRefused(t *testing.T) {
	for _, tc := range []struct {
		args []string
		says string
	}{
		{[]string{"-test", "rtt,nothing"}, `"nothing" is none of rtt, parked`},
		{[]string{"-transport", "ip"}, `"ip" is none of tcp, unix`},
		{[]string{"-size", "15"}, "is not between 16 B and 1024 MiB"},
		{[]string{"-size", "1025MiB"}, "is not between"},
		{[]string{"-size", "9223372036854775807KiB"}, "is not between"},
		{[]string{"-size", "64B"}, "is not a size like"},
		{[]string{"-conns", "0"}, "is not a number from 1"},
		{[]string{"-conns", ""}, "is not a number from 1"},
		{[]string{"-idle", "0"}, "-idle must be"},
		{[]string{"-gnetconns", "0"}, "is not a number from 1"},
		{[]string{"-gnetsize", "1"}, "is not between"},
		{[]string{"-loops", "0"}, "-loops must be"},
		{[]string{"-duration", "-1s"}, "-duration must be"},
		{[]string{"-warmup", "-1s"}, "-warmup must be"},
		{[]string{"-rounds", "0"}, "-rounds must be"},
		{[]string{"-rate", "NaN"}, "-rate must be"},
		{[]string{"-rate", "-1"}, "-rate must be"},
		{[]string{"-profile", "fast"}, `-profile "fast" is not`},
		{[]string{"-pin", "three"}, `-pin "three" is not`},
		{[]string{"rtt"}, `unexpected argument "rtt"`},
		{[]string{"-nothing"}, "flag provided but not defined"},
	} {
		_, err := parseOptions(tc.args, io.Discard)
		require.ErrorContains(t, err, tc.says, "%q", tc.args)
	}
}

// What the memory of a virtual machine can do changes from minute to minute.
func TestAFloorComesRightBehindWhatIsComparedWithIt(t *testing.T) {
	for _, parse := range []func([]string, io.Writer) (options, error){parseOptions, parseProgramOptions} {
		o, err := parse(nil, io.Discard)
		require.NoError(t, err)
		floors := 0
		tests := o.tests()
		for i, test := range tests {
			if test.Floor != nil {
				floors++
				require.Equal(t, test.Floor.Of, tests[i-1].Name)
			}
		}
		require.Equal(t, 2, floors)
	}
	o, err := parseOptions([]string{"-test", "floor"}, io.Discard)
	require.NoError(t, err)
	require.Len(t, o.tests(), 2)
}
