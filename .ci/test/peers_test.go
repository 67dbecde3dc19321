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
