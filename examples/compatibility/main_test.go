package main

import (
	"os"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestANameThatIsNoneIsAnError(t *testing.T) {
	require.ErrorContains(t, run([]string{"net/rpc", "gRCP"}, false, ""), "gRCP")
}

func TestEachLibraryWorksAsTheDocumentSays(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("there is no shared memory between processes but on Linux")
	}
	rows, err := tryAll(trials, os.Stderr)
	require.NoError(t, err)
	for _, r := range rows {
		changes, lines := r.changes()
		require.NotEmpty(t, changes, r.name)
		require.GreaterOrEqual(t, lines, len(changes), r.name)
		require.NotContains(t, r.version(), "?", r.name)
	}
	document, err := os.ReadFile("../../docs/compatibility.md")
	require.NoError(t, err)
	want, err := insert(string(document), table(rows))
	require.NoError(t, err)
	require.Equal(t, want, string(document), "go run -C examples/compatibility . -write")
}
