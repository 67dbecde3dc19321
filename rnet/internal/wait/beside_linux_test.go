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

// rawSleeper is a dormitory whose sleeps on a thread are not known to Go's scheduler: nobody
// takes the processor from them. They end with a byte in the pipe, or are given
// up.
type rawSleeper struct {
	*dormitory
	pipe    [2]int
	timer   int // ends a sleep after patient
	patient time.Duration
	givenUp atomic.Int64 // sleeps that were given up
	w       Waiter
}

func newRawSleeper(t *testing.T, patient time.Duration) *rawSleeper {
	b := &rawSleeper{patient: patient}
	require.NoError(t, unix.Pipe2(b.pipe[:], unix.O_NONBLOCK|unix.O_CLOEXEC))
	timer, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	require.NoError(t, err)
	b.timer = timer
	t.Cleanup(func() {
		unix.Close(b.timer)
		unix.Close(b.pipe[0])
		unix.Close(b.pipe[1])
	})
	b.dormitory = newDormitory(t, b.sleepRaw)
	b.lock.policy.profile = fallback.Efficient // sleeps without polling before
	return b
}

func (b *rawSleeper) sleepRaw() {
	patience := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(b.patient))}
	_ = unix.TimerfdSettime(b.timer, 0, &patience, nil)
	fds := [2]unix.PollFd{{Fd: int32(b.pipe[0]), Events: unix.POLLIN}, {Fd: int32(b.timer), Events: unix.POLLIN}}
	pollRaw(&fds) // ended by a byte, or given up
	if fds[0].Revents == 0 {
		b.givenUp.Add(1)
		return
	}
	var bytes [64]byte
	_, _, _ = unix.RawSyscall(unix.SYS_READ, uintptr(b.pipe[0]), uintptr(unsafe.Pointer(&bytes)), uintptr(len(bytes)))
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

// arrive publishes what its owner waits for, and ends its sleep.
func (b *rawSleeper) arrive() {
	b.publish(&b.w)
	_, _ = unix.Write(b.pipe[1], []byte{0}) // full if nobody has slept for long
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
		go func() {
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
	var threads uint64 // that slept
	for name, cause := range causes {
		for _, waiting := range []int{1, 2, 4} {
			t.Run(name, func(t *testing.T) {
				onProcessors(t, 2)
				sleepers := make([]*rawSleeper, waiting)
				for i := range sleepers {
					sleepers[i] = newRawSleeper(t, patience)
				}
				start := cause(t, func() {
					for _, b := range sleepers {
						b.arrive()
					}
				})
				back := make(chan struct{}, waiting)
				for range 200 {
					for _, b := range sleepers {
						b.w.Begin()
					}
					for _, b := range sleepers[1:] {
						go func() {
							b.lock.Wait(&b.w) // ended by the cause
							back <- struct{}{}
						}()
					}
					start()
					sleepers[0].lock.Wait(&sleepers[0].w) // ended by the cause
					for range sleepers[1:] {
						<-back
					}
					for _, b := range sleepers {
						require.Zero(t, b.givenUp.Load(), "sleeps that nobody could end")
					}
				}
				for _, b := range sleepers {
					threads += b.lock.ThreadWaits.Load()
				}
			})
		}
	}
	require.NotZero(t, threads, "no thread slept: nothing was shown")
}

// Where there is one processor of Go only, a sleep on the thread keeps it from all
// others until the runtime's monitor comes. So it is tried again at growing distances
// only, where it has kept somebody.
func TestOnOneProcessorFewSleepsKeepOthersFromRunning(t *testing.T) {
	for name, cause := range causes {
		t.Run(name, func(t *testing.T) {
			onProcessors(t, 1)
			b := newRawSleeper(t, threadSlice)
			start := cause(t, b.arrive)
			const rounds = 1000
			for range rounds {
				b.w.Begin()
				start()
				b.lock.Wait(&b.w) // ended by the cause
			}
			require.Less(t, b.givenUp.Load(), int64(rounds/50))
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
				sleepers := make([]*rawSleeper, n)
				for i := range sleepers {
					b := newRawSleeper(t, patience)
					b.lock.src = counted{b.dormitory, &polls}
					b.lock.policy.profile = fallback.Latency
					b.lock.policy.pace.init(time.Hour, time.Hour)
					b.w.Begin()
					sleepers[i] = b
				}
				start := cause(t, func() {
					for _, b := range sleepers {
						b.arrive()
					}
				})
				back := make(chan struct{}, n)
				for _, b := range sleepers {
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
				for range sleepers {
					<-back
				}
				if n == 1 { // otherwise a thread that the kernel keeps from running counts, too
					require.Less(t, late, chances/2)
				}
				for _, b := range sleepers {
					require.Zero(t, b.lock.PollMisses.Load(), "waits that did not end while polling")
				}
			})
		}
	}
}
