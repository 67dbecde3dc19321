package rcm

import (
	"bytes"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Taken reports whether the listener's process has taken all that it was sent, or
// may yet do so: on a busy machine a process waits for long, but one that is stopped
// takes nothing. It may be called while Connect runs.
func (r *softRoute) Taken() bool {
	raw, err := r.sock.SyscallConn()
	unread := 0 // where the connection has ended: then Connect is about to return
	if err == nil {
		raw.Control(func(fd uintptr) { unread, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
	}
	return unread == 0 || !stopped(r.sock.peer().PID)
}

// stopped reports whether a process is, by a signal or by a debugger. One in another
// PID namespace cannot be looked at, and is taken for one that runs.
func stopped(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if pid == 0 || err != nil {
		return false
	}
	// The state follows the name, which is in brackets and may have some itself.
	_, state, _ := bytes.Cut(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" "))
	return len(state) > 0 && (state[0] == 'T' || state[0] == 't')
}
