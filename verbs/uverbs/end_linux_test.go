package uverbs

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
)

func TestAnObjectThatTheKernelKeepsIsStillThere(t *testing.T) {
	var e ending
	for _, answer := range []error{fmt.Errorf("DEALLOC_MW: %w", verbs.ErrBusy), unix.EACCES} {
		require.Equal(t, answer, e.once(func() error { return answer }))
		require.NoError(t, e.use(func() error { return nil }))
	}
	require.NoError(t, e.once(func() error { return nil }))
	require.ErrorIs(t, e.once(func() error { panic("it is gone") }), verbs.ErrClosed)
}

func TestAnObjectEndsOnceWhoeverEndsIt(t *testing.T) {
	var e ending
	var commands, ended atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			switch err := e.once(func() error { commands.Add(1); return nil }); {
			case err == nil:
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
