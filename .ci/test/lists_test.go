package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A test that is renamed or moved would be left out of the count of hostile peers.
func TestEachTestOfAHostilePeerIsThere(t *testing.T) {
	list, err := os.ReadFile("../peers")
	require.NoError(t, err)
	lines := regexp.MustCompile(`(?m)^(\./\S+) ((?:Test|Fuzz)\w+)$`).FindAllStringSubmatch(string(list), -1)
	require.Equal(t, strings.Count(string(list), "\n")-1, len(lines), "each line but the first names a package and a test")
	for _, line := range lines {
		require.True(t, hasTest(t, filepath.Join("../..", line[1]), line[2]), "%s is not in %s", line[2], line[1])
	}
}

// A test that is renamed would run in the emulator, which cannot run it.
func TestEachTestThatArm64LeavesOutIsThere(t *testing.T) {
	list, err := os.ReadFile("../arm64")
	require.NoError(t, err)
	listed := make(map[string]bool)
	for _, line := range strings.Split(strings.TrimSuffix(string(list), "\n"), "\n") {
		if line != "" && !strings.HasPrefix(line, "#") {
			require.Regexp(t, `^Test\w+$`, line)
			require.False(t, listed[line], "%s is there twice", line)
			listed[line] = true
		}
	}
	there := make(map[string]bool)
	require.NoError(t, filepath.WalkDir("../..", func(path string, _ os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, f := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(string(text), -1) {
			there[f[1]] = true
		}
		return err
	}))
	for name := range listed {
		require.True(t, there[name], "%s is nowhere", name)
	}
}

func hasTest(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	require.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		if strings.Contains(string(text), "\nfunc "+name+"(") {
			return true
		}
	}
	return false
}
