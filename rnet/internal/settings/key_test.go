package settings

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAKeyIsAllThatAFileHolds(t *testing.T) {
	dir := t.TempDir()
	file := func(content []byte) string {
		name := filepath.Join(dir, "key")
		require.NoError(t, os.WriteFile(name, content, 0o600))
		return name
	}
	for _, key := range [][]byte{[]byte("its bytes, and the line end\n"), bytes.Repeat([]byte{0}, maxKey)} {
		got, err := readKey(file(key))
		require.NoError(t, err)
		require.Equal(t, key, got)
	}
	for _, test := range []struct{ name, says string }{
		{filepath.Join(dir, "missing"), "missing"},
		{dir, "is no regular file"},
		{os.DevNull, "is no regular file"},
		{file([]byte("fifteen bytes..")), "key of 15 bytes, want 16"},
	} {
		_, err := readKey(test.name)
		require.ErrorContains(t, err, test.says)
	}
	_, err := readKey(file(make([]byte, maxKey+1)))
	require.ErrorContains(t, err, "more than 4096 bytes")
}
