package random

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAllBytesAreFilledAndDiffer(t *testing.T) {
	Read(nil)
	for _, size := range []int{8, 16, 256, 257, 1000} {
		a, b := make([]byte, size), make([]byte, size)
		Read(a)
		Read(b)
		require.NotEqual(t, a, b)
		// That the last eight are all 0 by chance takes one of 2^64.
		require.False(t, bytes.HasSuffix(a, make([]byte, 8)), "%d bytes", size)
	}
}
