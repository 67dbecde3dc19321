package harness

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// sleeper wakes a goroutine at a time, more exactly than time.Sleep does,
// which rounds up to a millisecond when nothing else runs. It waits for a
// timerfd (timerfd_create(2)) on Go's netpoller, as a Read waits for a
// socket: it is late by as much as that, and keeps no CPU from the work that
// is measured.
type sleeper struct {
	fd    int
	timer *os.File // nil: the system has none for us
	count [8]byte
}

func newSleeper() *sleeper {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return &sleeper{}
	}
	return &sleeper{fd: fd, timer: os.NewFile(uintptr(fd), "timerfd")}
}

// sleep waits for d, which must be above 0.
func (s *sleeper) sleep(d time.Duration) {
	if s.timer != nil {
		once := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d))}
		if unix.TimerfdSettime(s.fd, 0, &once, nil) == nil {
			if _, err := s.timer.Read(s.count[:]); err == nil { // ended by the timer
				return
			}
		}
	}
	time.Sleep(d)
}

func (s *sleeper) close() {
	if s.timer != nil {
		s.timer.Close()
	}
}
