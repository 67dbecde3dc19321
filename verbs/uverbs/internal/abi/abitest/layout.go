// Package abitest compares structures in Go with those that the kernel reads.
package abitest

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
)

// RequireLayout checks the size of a structure and the offsets of some fields,
// and that Go has put no padding anywhere: the kernel would read it.
func RequireLayout(t testing.TB, value any, size uintptr, offsets map[string]uintptr) {
	t.Helper()
	typ := reflect.TypeOf(value)
	require.Equal(t, size, typ.Size(), "size of %v", typ)
	for name, want := range offsets {
		f, ok := typ.FieldByName(name)
		require.True(t, ok, "%v.%s", typ, name)
		require.Equal(t, want, f.Offset, "%v.%s", typ, name)
	}
	end := uintptr(0)
	for i := range typ.NumField() {
		f := typ.Field(i)
		require.Equal(t, end, f.Offset, "padding before %v.%s", typ, f.Name)
		end = f.Offset + f.Type.Size()
	}
	require.Equal(t, size, end, "padding at the end of %v", typ)
}
