package serial

import (
	"errors"
	"math"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/race"
)

// guarded are two numbers that whoever is in the section leaves equal.
type guarded struct {
	section  Section
	one, two int
}

func (g *guarded) change(t *testing.T) {
	if g.one != g.two {
		t.Errorf("somebody else is in the section: %d and %d", g.one, g.two)
	}
	g.one++
	g.two++
}

func TestLockKeepsTheDataPathOut(t *testing.T) {
	for name, promise := range map[string]bool{"a promise": true, "a mutex": false} {
		t.Run(name, func(t *testing.T) {
			g := new(guarded)
			if promise {
				makeUse(t, &g.section)
			}
			const others, locks = 3, 500
			ended := make(chan struct{})
			var dataPath, group sync.WaitGroup
			posts := 0
			dataPath.Go(func() {
				for ; ; posts++ {
					g.section.Begin()
					g.change(t)
					g.section.End()
					select {
					case <-ended:
						posts++
						return
					default:
					}
				}
			})
			for range others {
				group.Go(func() {
					for range locks {
						g.section.Lock()
						g.change(t)
						g.section.Unlock()
					}
				})
			}
			group.Wait() // Lock ends though the data path goes on and on
			close(ended)
			dataPath.Wait()
			require.Equal(t, posts+others*locks, g.one)
			require.Equal(t, g.one, g.two)
		})
	}
}

// Locks in a row, as Modify to RTS has them, against a data path that pauses after each round, with
// stores that are on their way when it leaves: one that misses that it has left waits for ever, and
// the data path with it.
func TestWhoWaitsLearnsThatTheDataPathHasLeft(t *testing.T) {
	const locks, posts, stores = 3, 2, 40
	rounds := uint64(20_000)
	if testing.Short() || race.Enabled { // there the section is a mutex, and each store is looked at
		rounds = 500
	}
	s := new(Section)
	makeUse(t, s)
	memory := make([]byte, 16<<20)
	var begun, done atomic.Uint64
	reached := func(v *atomic.Uint64, n uint64) bool { // ended by the other goroutine
		for i := 1; v.Load() < n; i++ {
			if i%1000 == 0 {
				runtime.Gosched()
			}
		}
		return v.Load() == n
	}
	go func() {
		for r := uint64(1); reached(&begun, r); r++ {
			for range locks {
				s.Lock()
				for range 600 {
					_ = s.wanted.Load()
				}
				s.Unlock()
			}
			done.Store(r)
		}
	}()
	defer begun.Store(math.MaxUint64)
	x := uint32(1)
	// On a busy machine each round may wait for a processor.
	for r, start := uint64(1), time.Now(); r <= rounds && time.Since(start) < 5*time.Second; r++ {
		begun.Store(r)
		for range posts {
			s.Begin()
			x = x*1664525 + 1013904223
			for i := range x >> 19 {
				_ = i
			}
			for y, i := x, 0; i < stores; i++ {
				y = y*1664525 + 1013904223
				memory[y>>8] = byte(i)
			}
			s.End()
		}
		reached(&done, r)
	}
}

// makeUse promises, and waits until use is made of it. Without a fence the section stays a mutex.
func makeUse(t *testing.T, s *Section) {
	t.Helper()
	s.Promise()
	require.Eventually(t, func() bool { return fenceState() != fenceUnknown }, time.Minute, time.Millisecond)
	calls := PaysAfter
	if race.Enabled {
		calls = 1
	}
	for range calls {
		require.False(t, s.Promised)
		s.Begin()
		s.End()
	}
	require.Equal(t, fenceState() == fenceReady, s.Promised)
}

// Who calls before the fence is ready takes the mutex, as whoever waits, and goes over
// while others wait.
func TestTheFirstCallThatPaysAndFindsTheFenceReadyMakesUseOfThePromise(t *testing.T) {
	makeUse(t, new(Section)) // the state of the fence is known
	for range 200 {
		g := new(guarded)
		g.section.Promise()
		others, locks, posts := 2, 20, 4*int(PaysAfter)
		var group sync.WaitGroup
		for range others {
			group.Go(func() {
				for range locks {
					g.section.Lock()
					g.change(t)
					g.section.Unlock()
				}
			})
		}
		ready := fencing.state.Load()
		if !race.Enabled {
			fencing.state.Store(fenceUnknown) // as at the start of the process
		}
		for i := range posts {
			if i == posts/2 {
				fencing.state.Store(ready)
			}
			g.section.Begin()
			g.change(t)
			g.section.End()
			if i%16 == 0 {
				runtime.Gosched()
			}
		}
		group.Wait()
		require.Equal(t, posts+others*locks, g.one)
		require.Equal(t, fenceState() == fenceReady, g.section.Promised)
	}
}

func TestOutlastWaitsForTheCallsThatRun(t *testing.T) {
	for _, promised := range []bool{true, false} {
		sections := make([]*Section, 3)
		for i := range sections {
			sections[i] = new(Section)
			if promised {
				makeUse(t, sections[i])
			}
		}
		var gone atomic.Bool // what a call of the data path must not find once Outlast has returned
		var over atomic.Bool
		var group sync.WaitGroup
		for _, s := range sections {
			group.Go(func() {
				for !over.Load() {
					s.Begin()
					if !gone.Load() {
						for range 100 {
							_ = s.wanted.Load()
						}
						if over.Load() {
							t.Error("a call that began before has outlasted Outlast")
						}
					}
					s.End()
					runtime.Gosched()
				}
			})
		}
		time.Sleep(time.Millisecond)
		gone.Store(true)
		Outlast(sections)
		over.Store(true)
		group.Wait()
	}
}

// The data path comes from one goroutine and then from another: the promise is that its
// calls do not overlap.
func TestTheDataPathMayComeFromAnyGoroutine(t *testing.T) {
	g := new(guarded)
	makeUse(t, &g.section)
	for range 100 {
		var one sync.WaitGroup
		one.Go(func() {
			g.section.Begin()
			g.change(t)
			g.section.End()
		})
		one.Wait()
	}
	require.Equal(t, 100, g.two)
}

func TestABrokenPromiseIsARace(t *testing.T) {
	const variable = "RAMJET_TEST_BREAK_A_PROMISE"
	if !race.Enabled {
		t.Skip("without the race detector nobody sees it")
	}
	if os.Getenv(variable) == "" {
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^"+t.Name()+"$")
		child.Env = append(os.Environ(), variable+"=yes", "GORACE=halt_on_error=1 exitcode=66")
		out, err := child.CombinedOutput()
		var exit *exec.ExitError
		require.Truef(t, errors.As(err, &exit), "%v: %s", err, out)
		require.Contains(t, string(out), "DATA RACE")
		require.Contains(t, string(out), "serial.(*Section)")
		return
	}
	s := new(Section)
	s.Promised = true // also where the kernel has no fence, which the race detector does without
	var group sync.WaitGroup
	for range 2 {
		group.Go(func() {
			for range 1000 {
				s.Begin()
				s.End()
			}
		})
	}
	group.Wait()
}
