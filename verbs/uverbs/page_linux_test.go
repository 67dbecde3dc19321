package uverbs

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPagesForCommandsAreZero(t *testing.T) {
	p, err := takePage()
	require.NoError(t, err)
	for i := range p {
		p[i] = 0xff
	}
	returnPage(p)
	for range pagesKept + 2 {
		p, err := takePage()
		require.NoError(t, err)
		require.Equal(t, make([]byte, commandPageSize), p)
		defer returnPage(p)
	}
}
