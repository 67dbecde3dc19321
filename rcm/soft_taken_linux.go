package rcm

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// moment is a time of the monotonic clock, 0 before it is set.
type moment struct{ since atomic.Int64 }

var clockBegin = time.Now()

func (m *moment) set()               { m.since.Store(int64(time.Since(clockBegin))) }
func (m *moment) age() time.Duration { return time.Since(clockBegin) - time.Duration(m.since.Load()) }

// Taken reports whether the listener's process has taken all that it was sent, but for
// what it was sent less than within ago, so that it lives and runs. A process that has
// much to do takes its time. Taken may be called while Connect runs.
func (r *softRoute) Taken(within time.Duration) bool {
	raw, err := r.sock.SyscallConn()
	if err != nil {
		return false // the connection has ended
	}
	taken := false
	raw.Control(func(fd uintptr) {
		unread, err := unix.IoctlGetInt(int(fd), unix.SIOCOUTQ)
		taken = err == nil && (unread == 0 || r.sent.age() < within)
	})
	return taken
}
