//go:build unix

package harness

import (
	"bytes"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// cpuTime is the user and system time that this process has used so far, all
// threads together (getrusage(2), RUSAGE_SELF).
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// kernelVersion names the system and its release.
func kernelVersion() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return runtime.GOOS
	}
	return cString(u.Sysname[:]) + " " + cString(u.Release[:])
}

func cString(b []byte) string {
	text, _, _ := bytes.Cut(b, []byte{0})
	return string(text)
}
