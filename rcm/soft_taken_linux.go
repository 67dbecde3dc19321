package rcm

import "golang.org/x/sys/unix"

// Taken reports whether the listener's process has taken all that it was sent,
// so that it lives and runs. It may be called while Connect runs.
func (r *softRoute) Taken() bool {
	raw, err := r.sock.SyscallConn()
	if err != nil {
		return false // the connection has ended
	}
	taken := false
	raw.Control(func(fd uintptr) {
		unread, err := unix.IoctlGetInt(int(fd), unix.SIOCOUTQ)
		taken = err == nil && unread == 0
	})
	return taken
}
