package uverbs

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
)

func TestABusyObjectIsStillThere(t *testing.T) {
	var e ending
	busy := fmt.Errorf("DEALLOC_MW: %w", verbs.ErrBusy)
	require.Equal(t, busy, e.once(func() error { return busy }))
	require.NoError(t, e.once(func() error { return nil }))
	require.ErrorIs(t, e.once(func() error { panic("it is gone") }), verbs.ErrClosed)
}

func TestAnObjectEndsOnceWhoeverEndsIt(t *testing.T) {
	answer := errors.New("no such handle")
	var e ending
	var commands, ended atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			switch err := e.once(func() error { commands.Add(1); return answer }); {
			case errors.Is(err, answer):
				ended.Add(1)
			case !errors.Is(err, verbs.ErrClosed):
				t.Error(err)
			}
		})
	}
	wg.Wait() // ends with the goroutines
	require.EqualValues(t, 1, commands.Load())
	require.EqualValues(t, 1, ended.Load())
}
