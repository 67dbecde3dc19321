package rgnet

import (
	"fmt"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// wakeSocket is how one of gnet's event loops is woken: a Unix socket pair of which
// gnet polls one end. What the loop needs to know is that there is something to
// read.
type wakeSocket struct {
	loop *eventLoop // set on the loop's goroutine when gnet has taken the socket

	mu sync.Mutex
	fd int // our end, -1 when removed; guarded by mu
}

// newWakeSocket makes the pair and returns the end that gnet is to poll. Where names
// count, those of one process have different ones.
func newWakeSocket(named bool) (*wakeSocket, net.Conn, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("rgnet: make a wake socket: %w", os.NewSyscallError("socketpair", err))
	}
	if named {
		// Without a name the kernel makes one up that nobody else has.
		if err = unix.Bind(fds[1], &unix.SockaddrUnix{}); err != nil {
			err = os.NewSyscallError("bind", err)
		}
	}
	f := os.NewFile(uintptr(fds[0]), "wake socket")
	defer f.Close()
	var conn net.Conn
	if err == nil {
		conn, err = net.FileConn(f)
	}
	if err != nil {
		unix.Close(fds[1])
		return nil, nil, fmt.Errorf("rgnet: make a wake socket: %w", err)
	}
	return &wakeSocket{fd: fds[1]}, conn, nil
}

var oneByte = []byte{1}

// wake makes gnet call OnTraffic. If the socket is full gnet will do so anyway.
func (w *wakeSocket) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fd >= 0 {
		unix.Write(w.fd, oneByte)
	}
}

func (w *wakeSocket) remove() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fd >= 0 {
		unix.Close(w.fd)
		w.fd = -1
	}
}
