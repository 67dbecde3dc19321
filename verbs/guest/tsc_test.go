package main

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFrequencyIsTheSameTwice(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		require.Zero(t, tscNow().frequency())
		return
	}
	first, second := tscNow().frequency(), tscNow().frequency()
	require.Greater(t, first, int64(100_000))
	require.InEpsilon(t, first, second, 0.02)
}
