package serial

import (
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/race"
)

// A program that has installed a filter of its system calls goes on, only that who waits for the
// data path waits for longer.
func TestAProcessMayLoseTheFence(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector nobody needs the fence")
	}
	g := new(guarded)
	makeUse(t, &g.section)
	if !g.section.Promised {
		t.Skip("the kernel has no fence")
	}
	works := membarrier
	t.Cleanup(func() { membarrier = works })
	refused := 0
	membarrier = func(command uintptr) syscall.Errno { refused++; return syscall.EPERM }
	var over atomic.Bool
	posts := make(chan int)
	go func() {
		n := 0
		for ; !over.Load(); n++ {
			g.section.Begin()
			g.change(t)
			g.section.End()
		}
		posts <- n
	}()
	const locks = 20
	for range locks {
		g.section.Lock()
		g.change(t)
		g.section.Unlock()
	}
	Outlast([]*Section{&g.section})
	over.Store(true)
	n := <-posts
	require.Equal(t, n+locks, g.two)
	require.GreaterOrEqual(t, refused, locks+1)
}
