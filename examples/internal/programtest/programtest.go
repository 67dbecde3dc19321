// Package programtest lets the tests of an example run its program.
package programtest

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/freeport"
)

// Main is what TestMain does where the test program is the example's other process too: the one
// whose first argument is flag.
func Main(m *testing.M, flag string, main func()) {
	if len(os.Args) > 1 && os.Args[1] == flag {
		main()
		return
	}
	os.Exit(m.Run())
}

// NobodysAddress returns an address at which nobody listens.
func NobodysAddress(t testing.TB) string {
	t.Helper()
	address, err := freeport.Address("127.0.0.1")
	require.NoError(t, err)
	return address
}
