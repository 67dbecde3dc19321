package rnet

import "golang.org/x/sys/unix"

// tcpWaits reports whether somebody waits in the backlog of the TCP listener.
func (l *Listener) tcpWaits() bool {
	if l.tcp == nil {
		return false
	}
	raw, err := l.tcp.SyscallConn()
	if err != nil {
		return false
	}
	n := 0
	raw.Control(func(fd uintptr) {
		n, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	})
	return n > 0
}
