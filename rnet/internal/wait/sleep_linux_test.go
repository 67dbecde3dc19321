package wait

import (
	"os"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// onProcessors gives the test n processors of Go. There is no collection meanwhile: it
// would wait for threads that the runtime does not know to sleep.
func onProcessors(t *testing.T, n int) {
	before, percent := procs, debug.SetGCPercent(-1)
	runtime.GC()
	runtime.GOMAXPROCS(n)
	procs = n
	t.Cleanup(func() {
		runtime.GOMAXPROCS(before)
		procs = before
		debug.SetGCPercent(percent)
	})
}

// dormitory is a source whose channel has its own idea of a sleep on a thread.
type dormitory struct {
	box
	sleep func()
}

func newDormitory(t *testing.T, sleep func()) *dormitory {
	d := &dormitory{sleep: sleep}
	d.wake = make(chan struct{}, 1)
	d.lock.Init(d, d, Config{Thread: true})
	d.run(t)
	return d
}

func (d *dormitory) WaitThread(time.Time) error {
	d.sleep()
	return nil
}

// A thread that sleeps takes Go's processor along, so who was runnable before runs
// before.
func TestWhoIsRunnableRunsBeforeTheThreadSleeps(t *testing.T) {
	onProcessors(t, 1)
	const rounds = 2000
	var ran atomic.Int64
	var w Waiter
	sleeps, kept := int64(0), 0
	d := &dormitory{}
	d.lock.Init(d, d, Config{Thread: true}) // and is ours
	d.sleep = func() {
		if sleeps++; ran.Load() < sleeps {
			kept++
		}
		d.publish(&w)
	}
	for range rounds {
		d.lock.sleeper = sleeper{} // forgets what a slow machine has taught it
		w.Begin()
		go ran.Add(1) // runnable, on the same processor
		require.True(t, d.lock.sleepFor(&w))
	}
	require.EqualValues(t, rounds, sleeps)
	require.Zero(t, kept, "sleeps that kept a runnable goroutine from running")
}

// reception is a dormitory to which something comes for a goroutine that does not wait for the lock, as Accept.
type reception struct {
	dormitory
	comes bool
	ran   atomic.Int64
}

func (r *reception) Poll() int {
	n := r.dormitory.Poll()
	if r.comes {
		r.comes = false
		n++
		go r.ran.Add(1) // runnable, on the same processor
	}
	return n
}

// So do those for whom something comes between two sleeps.
func TestWhoBecomesRunnableBetweenSleepsRunsBeforeTheNext(t *testing.T) {
	onProcessors(t, 1)
	const rounds = 2000
	var w Waiter
	r := &reception{}
	r.lock.Init(r, r, Config{Thread: true}) // and is ours
	r.lock.rests = false
	came, sleeps, again, kept := int64(0), 0, 0, 0
	r.sleep = func() {
		if sleeps++; sleeps == 1 {
			r.comes = true
			came++
			return
		}
		if again++; r.ran.Load() < came {
			kept++
		}
		r.publish(&w)
	}
	for range rounds {
		r.lock.sleeper, sleeps = sleeper{}, 0 // forgets what a slow machine has taught it
		w.Begin()
		r.lock.sleepFor(&w)
	}
	require.NotZero(t, again)
	require.Zero(t, kept, "sleeps that kept a runnable goroutine from running")
}

// What ends the sleeps of a proxy is done by another goroutine of the process, which a
// timer or a socket wakes. It needs the processor that a thread would take along.
func TestSleepsThatOurOwnGoroutinesEndAreNotOnTheThread(t *testing.T) {
	const nap = 200 * time.Microsecond
	alarm, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	require.NoError(t, err)
	socket := os.NewFile(uintptr(alarm), "alarm") // on the netpoller, as a socket is
	defer socket.Close()
	for name, pause := range map[string]func(){
		"timer": func() { time.Sleep(nap) },
		"socket": func() {
			once := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(nap))}
			assert.NoError(t, unix.TimerfdSettime(alarm, 0, &once, nil))
			_, err := socket.Read(make([]byte, 8)) // ended by the alarm
			assert.NoError(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			onProcessors(t, 1)
			var wake [2]int
			require.NoError(t, unix.Pipe(wake[:]))
			defer unix.Close(wake[0])
			defer unix.Close(wake[1])
			onThread := 0
			var asleep atomic.Bool
			var d *dormitory
			d = newDormitory(t, func() {
				asleep.Store(true)
				d.mu.Lock()
				armed := d.armed
				d.mu.Unlock()
				if !armed && asleep.Swap(false) {
					return // what it would wait for has come
				}
				onThread++
				_, err := unix.Read(wake[0], make([]byte, 1)) // ended by the goroutine below
				assert.NoError(t, err)
			})
			var w Waiter
			calls := make(chan bool)
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				for range calls { // ended below
					pause()
					d.publish(&w)
					if asleep.Swap(false) {
						_, err := unix.Write(wake[1], make([]byte, 1))
						assert.NoError(t, err)
					}
				}
			}()
			const rounds = 200
			for range rounds {
				w.Begin()
				calls <- true
				d.lock.Wait(&w) // ended by what is published
			}
			close(calls)
			<-ended
			require.Less(t, onThread, rounds/10)
		})
	}
}

// parker counts the places for threads that are taken while the owner parks.
type parker struct {
	dormitory
	w      Waiter
	places int32
}

func (p *parker) Wait(until time.Time) error {
	p.places = threadSleeps.Load()
	p.publish(&p.w)
	return p.box.Wait(until) // ended by what was published
}

// A sleep that has become long goes on without the thread, and leaves its place to
// other owners.
func TestAnOwnerThatParksTakesNoPlaceForThreads(t *testing.T) {
	p := &parker{}
	p.wake = make(chan struct{}, 1)
	p.sleep = func() { time.Sleep(2 * time.Millisecond) } // too long for a thread
	p.lock.Init(p, p, Config{Thread: true})
	p.lock.rests = true
	p.w.Begin()
	require.True(t, p.lock.sleepFor(&p.w))
	require.EqualValues(t, 1, p.lock.ThreadWaits.Load(), "no sleep on a thread")
	require.Zero(t, p.places)
	require.Zero(t, threadSleeps.Load())
}

// While a thread sleeps the runtime's monitor does not rest, which costs more than it saves
// if the sleep is long.
func TestLongSleepsAreNotOnTheThread(t *testing.T) {
	onProcessors(t, 4)
	var l Lock
	l.cfg.Thread = true
	for range 16 {
		l.sleeper.slept(time.Millisecond, true)
	}
	require.False(t, l.mayBlockThread())
	for range 16 {
		l.sleeper.slept(20*time.Microsecond, false)
	}
	require.True(t, l.mayBlockThread(), "they have become short")
	LeaveThread()
}
