package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func parseLine(t *testing.T, line string) options {
	t.Helper()
	o, err := parse(strings.Fields(line), io.Discard)
	require.NoError(t, err, line)
	return o
}

func TestProgramsAreOfTheHostOrOfTheGuest(t *testing.T) {
	for _, c := range []struct {
		line    string
		inside  bool
		program string
		args    []string
	}{
		{"/tmp/x.test -test.v=true -test.run=X", false, "/tmp/x.test", []string{"-test.v=true", "-test.run=X"}},
		{"-kernel 6.12 ./x -v", false, "./x", []string{"-v"}},
		{"-- rdma link", true, "rdma", []string{"link"}},
		{"-v -- sh -c -- x", true, "sh", []string{"-c", "--", "x"}},
		{"./x -- y", false, "./x", []string{"--", "y"}},
	} {
		o := parseLine(t, c.line)
		require.Equal(t, c.inside, o.inside, c.line)
		require.Equal(t, c.program, o.program, c.line)
		require.Equal(t, c.args, o.args, c.line)
	}
}

func TestDevicesAndProcessorsDependOnThePair(t *testing.T) {
	for _, c := range []struct {
		line    string
		devices []string
		cpus    int
	}{
		{"x", []string{"rxe0", "siw0"}, 2},
		{"-pair x", []string{"rxe0"}, 1},
		{"-pair -cpus 3 -devices siw0 x", []string{"siw0"}, 3},
		{"-devices none x", []string{}, 2},
	} {
		o := parseLine(t, c.line)
		require.Equal(t, c.devices, o.devices, c.line)
		require.Equal(t, c.cpus, o.cpus, c.line)
		require.Contains(t, o.environment(nil), "RAMJET_DEVICES="+strings.Join(c.devices, ","))
	}
}

func TestNonsenseIsRefused(t *testing.T) {
	for _, line := range []string{
		"", "-pair", "-prepare x", "-devices mlx5_0 x", "-devices rxe x", "-devices rxe0,eth0 x", "-accel xen x",
		"-memory 12 x", "-cpus -1 x", "-env NAME x", "-env =x x", "-timeout -1s x", "-boot-timeout 0s x", "-nosuch x",
	} {
		_, err := parse(strings.Fields(line), io.Discard)
		require.Error(t, err, line)
	}
}

func TestTimeLimitIsTheTestsOwnAndAMoment(t *testing.T) {
	for _, c := range []struct {
		line string
		want time.Duration
	}{
		{"./x.test -test.timeout=1m0s", 75 * time.Second},
		{"./x.test -test.timeout=0s", 0},
		{"./x.test", 10 * time.Minute},
		{"-timeout 7s ./x.test -test.timeout=1m0s", 7 * time.Second},
		{"-- x -test.timeout=1m0s", 10 * time.Minute},
	} {
		o := parseLine(t, c.line)
		require.Equal(t, c.want, o.timeLimit(), c.line)
	}
}

func TestEnvironmentIsWhatIsMeantForTheProgram(t *testing.T) {
	o := parseLine(t, "-env A=1 -env RNET_LOG=2 -devices rxe0 x")
	env := o.environment([]string{
		"RNET_TRANSPORT=rdma", "RAMJET_X=y", "RAMJET_DEVICES=of the host", "GODEBUG=a=1", "GOFLAGS=-v", "HOME=/home/me", "SECRET=x",
	})
	for _, want := range []string{"RNET_TRANSPORT=rdma", "RAMJET_X=y", "RAMJET_DEVICES=rxe0", "GODEBUG=a=1", "A=1", "RNET_LOG=2", "HOME=/root"} {
		require.Contains(t, env, want)
	}
	text := strings.Join(env, " ")
	for _, other := range []string{"of the host", "GOFLAGS", "/home/me", "SECRET"} {
		require.NotContains(t, text, other)
	}
	require.Equal(t, "RNET_LOG=2", env[len(env)-1], "the flag comes last, and counts")
}

func TestResultsAreTheFilesOfGoTest(t *testing.T) {
	for _, c := range []struct {
		args               string
		files, directories []string
	}{
		{"-test.v=true", nil, nil},
		{"-test.coverprofile=/a/c.out -test.cpuprofile=cpu.out", []string{"/a/c.out", "/dir/cpu.out"}, nil},
		{"-test.outputdir=/out -test.trace=t -test.memprofile=", []string{"/out/t"}, nil},
		{"-test.outputdir=out -test.trace=t", []string{"/dir/out/t"}, nil},
		{"-test.gocoverdir=/cover -test.fuzz=FuzzX", nil, []string{"/cover", "/dir/testdata/fuzz"}},
		{"-test.gocoverdir=cover/", nil, []string{"/dir/cover"}},
		{"-test.artifacts=true -test.outputdir=/out", nil, []string{"/out/_artifacts"}},
		{"-test.artifacts=false", nil, nil},
	} {
		files, directories := results(strings.Fields(c.args), "/dir")
		require.Equal(t, c.files, files, c.args)
		require.Equal(t, c.directories, directories, c.args)
	}
}

func TestResultsAreNeverTakenFromTheCache(t *testing.T) {
	args := []string{"-test.v=true", "-test.testlogfile=/tmp/log", "-test.timeout=1m0s"}
	require.Equal(t, []string{"-test.v=true", "-test.timeout=1m0s"}, testArgs(args))
	require.Len(t, args, 3, "the caller's arguments stay")
}

func TestCopiedFilesHaveAPlaceInTheGuest(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o644))
	from, to, err := copied(file)
	require.NoError(t, err)
	require.Equal(t, []string{file, file}, []string{from, to})
	from, to, err = copied(file + ":/there")
	require.NoError(t, err)
	require.Equal(t, []string{file, "/there"}, []string{from, to})
	_, _, err = copied(file + ":there")
	require.Error(t, err)
	_, _, err = copied(file + ".missing")
	require.ErrorIs(t, err, os.ErrNotExist)
}
