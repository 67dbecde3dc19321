package abi

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPagesForCommandsAreZero(t *testing.T) {
	p, err := TakePage()
	require.NoError(t, err)
	for i := range p {
		p[i] = 0xff
	}
	ReturnPage(p)
	for range pagesKept + 2 {
		p, err := TakePage()
		require.NoError(t, err)
		require.Equal(t, make([]byte, commandPageSize), p)
		defer ReturnPage(p)
	}
}
