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
