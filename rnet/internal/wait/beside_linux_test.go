package wait

import (
	"io"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/fallback"
)

// patience is how long a thread sleeps that nobody wakes.
const patience = 10 * time.Second

// bed is a dormitory whose sleeps on a thread are not known to Go's scheduler: nobody
// takes the processor from them. They end when somebody knocks, or are given up.
type bed struct {
	*dormitory
	door    [2]int
	clock   int // of its patience
	patient time.Duration
	kept    atomic.Int64 // sleeps that were given up
	w       Waiter
}

func newBed(t *testing.T, patient time.Duration) *bed {
	b := &bed{patient: patient}
	require.NoError(t, unix.Pipe2(b.door[:], unix.O_NONBLOCK|unix.O_CLOEXEC))
	clock, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	require.NoError(t, err)
	b.clock = clock
	t.Cleanup(func() {
		unix.Close(b.clock)
		unix.Close(b.door[0])
		unix.Close(b.door[1])
	})
	b.dormitory = newDormitory(t, b.sleepRaw)
	b.lock.policy.profile = fallback.Efficient // sleeps without polling before
	return b
}

func (b *bed) sleepRaw() {
	patience := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(b.patient))}
	_ = unix.TimerfdSettime(b.clock, 0, &patience, nil)
	fds := [2]unix.PollFd{{Fd: int32(b.door[0]), Events: unix.POLLIN}, {Fd: int32(b.clock), Events: unix.POLLIN}}
	pollRaw(&fds) // ended by a knock, or given up
	if fds[0].Revents == 0 {
		b.kept.Add(1)
		return
	}
	var knocks [64]byte
	_, _, _ = unix.RawSyscall(unix.SYS_READ, uintptr(b.door[0]), uintptr(unsafe.Pointer(&knocks)), uintptr(len(knocks)))
}

// pollRaw waits for fds. The scheduler's signals do not make it give way.
//
//go:nosplit
func pollRaw(fds *[2]unix.PollFd) {
	for {
		_, _, err := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(fds)), 2, 0, 0, 0, 0)
		if err != unix.EINTR {
			return
		}
	}
}

// arrive publishes what the owner of the bed waits for, and knocks.
func (b *bed) arrive() {
	b.publish(&b.w)
	_, _ = unix.Write(b.door[1], []byte{0}) // full if nobody has slept for long
}

// causes are events that Go's scheduler has to see, and a processor of it to handle.
// Each starts a way to call f soon.
var causes = map[string]func(t *testing.T, f func()) (start func()){
	"timer": func(_ *testing.T, f func()) func() {
		return func() { time.AfterFunc(50*time.Microsecond, f) }
	},
	"TCP": func(t *testing.T, f func()) func() {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer ln.Close()
		near, err := net.Dial("tcp", ln.Addr().String())
		require.NoError(t, err)
		far, err := ln.Accept()
		require.NoError(t, err)
		ended := make(chan struct{}, 2)
		t.Cleanup(func() {
			near.Close()
			far.Close()
			<-ended
			<-ended
		})
		go func() { // an echo; ended by Close
			defer func() { ended <- struct{}{} }()
			_, _ = io.Copy(far, far)
		}()
		go func() { // ended by Close
			defer func() { ended <- struct{}{} }()
			for one := make([]byte, 1); ; f() {
				if _, err := near.Read(one); err != nil {
					return
				}
			}
		}()
		return func() {
			_, err := near.Write([]byte{0})
			assert.NoError(t, err)
		}
	},
}

// A goroutine that waits keeps neither a timer from firing nor a socket from being
// read, however many wait: what ends their waits is such a timer or socket, and their
// threads would sleep on without it.
func TestWhoWaitsKeepsNobodyFromRunning(t *testing.T) {
	for name, cause := range causes {
		for _, waiting := range []int{1, 2, 4} {
			t.Run(name, func(t *testing.T) {
				onProcessors(t, 2)
				beds := make([]*bed, waiting)
				for i := range beds {
					beds[i] = newBed(t, patience)
				}
				start := cause(t, func() {
					for _, b := range beds {
						b.arrive()
					}
				})
				back := make(chan struct{}, waiting)
				var threads uint64
				for range 200 {
					for _, b := range beds {
						b.w.Begin()
					}
					for _, b := range beds[1:] {
						go func() {
							b.lock.Wait(&b.w) // ended by the cause
							back <- struct{}{}
						}()
					}
					start()
					beds[0].lock.Wait(&beds[0].w) // ended by the cause
					for range beds[1:] {
						<-back
					}
					for _, b := range beds {
						require.Zero(t, b.kept.Load(), "sleeps that nobody could end")
					}
				}
				for _, b := range beds {
					threads += b.lock.ThreadWaits.Load()
				}
				require.NotZero(t, threads, "no thread slept: nothing was shown")
			})
		}
	}
}

// Where there is one processor of Go only, a sleep on the thread keeps it from all
// others until the runtime's monitor comes. So it is tried again at growing distances
// only, where it has kept somebody.
func TestOnOneProcessorFewSleepsKeepOthersFromRunning(t *testing.T) {
	for name, cause := range causes {
		t.Run(name, func(t *testing.T) {
			onProcessors(t, 1)
			b := newBed(t, threadSlice)
			start := cause(t, b.arrive)
			const rounds = 1000
			for range rounds {
				b.w.Begin()
				start()
				b.lock.Wait(&b.w) // ended by the cause
			}
			require.Less(t, b.kept.Load(), int64(rounds/50))
		})
	}
}

// counted is a source that counts how often it is polled.
type counted struct {
	Source
	polls *atomic.Int64
}

func (c counted) Poll() int {
	c.polls.Add(1)
	return c.Source.Poll()
}

// As many goroutines as there are processors poll without an end, until a socket or a
// timer ends that, which somebody starts who has done a lot before. Between two chances
// for that one they poll some ten times. The runtime's monitor would give one after
// 10 ms: ten thousands of polls.
func TestSocketsAndTimersGoOnBesidePollers(t *testing.T) {
	const most = 2000
	for name, cause := range causes {
		for n := 1; n <= 2; n++ {
			t.Run(name, func(t *testing.T) {
				onProcessors(t, n)
				var polls atomic.Int64
				beds := make([]*bed, n)
				for i := range beds {
					b := newBed(t, patience)
					b.lock.src = counted{b.dormitory, &polls}
					b.lock.policy.profile = fallback.Latency
					b.lock.policy.limit = time.Hour
					b.w.Begin()
					beds[i] = b
				}
				start := cause(t, func() {
					for _, b := range beds {
						b.arrive()
					}
				})
				back := make(chan struct{}, n)
				for _, b := range beds {
					go func() {
						b.lock.Wait(&b.w) // ended by the cause
						back <- struct{}{}
					}()
				}
				for polls.Load() == 0 { // ended by the pollers
					runtime.Gosched()
				}
				late := 0
				const chances = 200
				for range chances {
					before := polls.Load()
					runtime.Gosched()
					if polls.Load()-before > most {
						late++
					}
				}
				start()
				for range beds {
					<-back
				}
				if n == 1 { // otherwise a thread that the kernel keeps from running counts, too
					require.Less(t, late, chances/2)
				}
				for _, b := range beds {
					require.Zero(t, b.lock.PollMisses.Load(), "waits that did not end while polling")
				}
			})
		}
	}
}
