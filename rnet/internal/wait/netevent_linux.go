package wait

import (
	"encoding/binary"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// event is an eventfd in Go's network poller.
type event struct {
	fd   int
	file *os.File
}

// newEvent returns nil if the system has none left.
func newEvent() *event {
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return nil
	}
	return &event{fd, os.NewFile(uintptr(fd), "eventfd")}
}

// signal ends a wait, the present one or the next. The caller sees to it that it is not called
// after close: the descriptor may be somebody else's then.
func (e *event) signal() {
	_, _ = unix.Write(e.fd, oneEvent) // fails only if nobody has waited 2^64-2 times
}

var oneEvent = binary.NativeEndian.AppendUint64(nil, 1)

func (e *event) wait(until time.Time) error {
	if err := e.file.SetReadDeadline(until); err != nil {
		return err
	}
	var count [8]byte
	_, err := e.file.Read(count[:])
	return err
}

func (e *event) close() { e.file.Close() }
