//go:build unix

package harness

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTestThatNeedsMoreFilesThanAllowedIsLeftOut(t *testing.T) {
	// No system lets a process have so many.
	table, progress, err := runBench(t, "-transport", "tcp", "-test", "gnet", "-gnetconns", "1,8000000")
	require.NoError(t, err, progress)
	require.Contains(t, table, "gnet echo, 64 B, 8000000 connections, tcp: left out: 8000200 open files are needed, and ")
	require.Contains(t, table, "raise RLIMIT_NOFILE")
	require.Regexp(t, `8000000 connections +per second +-\n`, table)
}

func TestFilesAreCountedForAllClientProcesses(t *testing.T) {
	tcp, fast := transports[0], transports[2]
	one := workload{Conns: 64}
	require.Equal(t, 64+spareFiles, filesFor(tcp, one, 3))
	one.Hop = true
	require.Equal(t, 128+spareFiles, filesFor(tcp, one, 3))
	many := workload{Conns: 1, Clients: 1000}
	require.Equal(t, 1000*processFiles+spareFiles, filesFor(tcp, many, 1))
	require.Equal(t, 1000*processFiles*3+spareFiles, filesFor(tcp, many, 3))
	require.Equal(t, 1000*sessionFiles+spareFiles, filesFor(fast, many, 1))
}
