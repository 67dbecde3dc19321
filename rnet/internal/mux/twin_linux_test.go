package mux

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// No timer looks soon after a mux whose peer is in this process: the peer has it look.
func TestAnOpenIsHeardInTheSameProcess(t *testing.T) {
	const rounds = 100
	dialed, accepted := overSoft.pair(t)
	used, err := dialed.open()
	require.NoError(t, err)
	reader := <-accepted.opened
	heard := 0
	for range rounds {
		for b := make([]byte, 1); !accepted.PollLock().Unattended(); { // until the reader has polled
			_, err := used.Write(b)
			require.NoError(t, err)
			_, err = reader.Read(b)
			require.NoError(t, err)
		}
		st, err := dialed.open()
		require.NoError(t, err)
		heard += len(accepted.opened)
		got := <-accepted.opened
		require.NoError(t, got.Close(0))
		require.NoError(t, st.Close(0))
	}
	require.Greater(t, heard, rounds/2) // in the others the sweep was there before, which then hears of it by an event
}

// Muxes do not outlive their sessions because they were in one process.
func TestEndsInOneProcessLetGoOfEachOther(t *testing.T) {
	dialed, accepted := overSoft.pair(t)
	require.NotNil(t, dialed.twin.Load())
	require.NotNil(t, accepted.twin.Load())
	dialed.Fail(nil)
	<-dialed.Done()
	require.Nil(t, dialed.twin.Load())
	require.Nil(t, accepted.twin.Load())
	accepted.Fail(nil)
	<-accepted.Done()
	twins.mu.Lock()
	defer twins.mu.Unlock()
	require.NotContains(t, twins.muxs, dialed.token)
	require.NotContains(t, twins.muxs, accepted.token)
}
