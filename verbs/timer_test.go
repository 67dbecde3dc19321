package verbs

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRNRTimerCodesMeanWhatTheSpecificationSays(t *testing.T) {
	// InfiniBand Architecture Specification, table 45, in units of 10 us.
	want := [32]int{
		65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768,
		1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
	}
	for code, tens := range want {
		require.Equal(t, time.Duration(tens)*10*time.Microsecond, RNRTimer(uint8(code)), "code %d", code)
	}
	require.Equal(t, 655360*time.Microsecond, RNRTimer(0), "0 is the longest")
	require.Equal(t, RNRTimer(1), RNRTimer(33), "only five bits count")
}

func TestAckTimeoutDoublesWithEachCode(t *testing.T) {
	require.Zero(t, AckTimeout(0), "without end")
	require.Equal(t, 8192*time.Nanosecond, AckTimeout(1))
	require.Equal(t, 67108864*time.Nanosecond, AckTimeout(14))
	for code := uint8(2); code < 32; code++ {
		require.Equal(t, 2*AckTimeout(code-1), AckTimeout(code))
	}
	require.Equal(t, AckTimeout(1), AckTimeout(33), "only five bits count")
}
