package mux

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// A Close while f looks at the data does not give its memory to another stream.
func TestWhatShowShowsStaysWhereItIs(t *testing.T) {
	dialed, accepted := overSoft.pair(t)
	c, s := open(t, dialed, accepted)
	_, err := c.Write([]byte("data"))
	require.NoError(t, err)
	err = s.Show(func(data []byte, _ error) (int, bool) {
		if len(data) == 0 {
			return 0, false
		}
		require.NoError(t, s.Close(-1))
		for range 100 {
			k := NewChunk(len(data))
			require.NotEqual(t, unsafe.Pointer(unsafe.SliceData(data)), unsafe.Pointer(unsafe.SliceData(k.buf)))
		}
		return len(data), true
	})
	require.NoError(t, err)
}
