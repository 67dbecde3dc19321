//go:build amd64 || arm64

package ibverbs

import (
	"errors"
	"testing"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
)

func TestALibraryWithOtherSymbolsIsRefused(t *testing.T) {
	l, err := loaded()
	if errors.Is(err, errNoLibrary) {
		t.Skip(err)
	}
	require.NoError(t, err)
	require.NotZero(t, l.openDevice)
	opened, err := purego.Dlopen(libraryName, purego.RTLD_NOW|purego.RTLD_LOCAL)
	require.NoError(t, err)
	for _, s := range []symbol{{name: "ibv_open_device", version: "IBVERBS_1.0.1"}, {name: "ibv_open_devices", version: "IBVERBS_1.1"}} {
		var address uintptr
		s.address = &address
		err = bind(opened, []symbol{s})
		require.ErrorIs(t, err, verbs.ErrUnsupported)
		require.ErrorContains(t, err, s.name+" of version "+s.version)
	}
}
