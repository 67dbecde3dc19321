//go:build amd64 || arm64

package ibverbs

import (
	"testing"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// A process that gives commands by write(2), and has changed its user since, can destroy nothing.
func TestMemoryThatTheKernelHasNotLetGoOfStaysUntilTheDeviceIsClosed(t *testing.T) {
	refuses, err := purego.Dlsym(purego.RTLD_DEFAULT, "abs") // returns what it is given
	require.NoError(t, err)
	d := &device{lib: &library{deregMR: refuses}, objects: make(map[uintptr]object)}
	r := &region{dev: d, pd: &pd{dev: d}, address: uintptr(unix.EACCES), mem: make([]byte, 8)}
	require.NoError(t, r.pd.life.use())
	d.add(r.address, r)
	require.ErrorIs(t, r.Deregister(), unix.EACCES)
	require.Equal(t, r, d.find(r.address), "nothing keeps the memory of a caller")
	require.ErrorIs(t, r.Deregister(), verbs.ErrClosed)
}
