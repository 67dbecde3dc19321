package rgnet

import (
	"fmt"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// bell is how one of gnet's event loops is woken: a Unix socket pair of which
// gnet polls one end. What the loop needs to know is that there is something to
// read.
type bell struct {
	loop *eventLoop // set on the loop's goroutine when gnet has taken the bell

	mu sync.Mutex
	fd int // our end, -1 when removed; guarded by mu
}

// newBell makes a bell and returns the end that gnet is to poll. Where names
// count, the bells of one process have different ones.
func newBell(named bool) (*bell, net.Conn, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("rgnet: make a bell: %w", os.NewSyscallError("socketpair", err))
	}
	if named {
		// Without a name the kernel makes one up that nobody else has.
		if err = unix.Bind(fds[1], &unix.SockaddrUnix{}); err != nil {
			err = os.NewSyscallError("bind", err)
		}
	}
	f := os.NewFile(uintptr(fds[0]), "bell")
	defer f.Close()
	var conn net.Conn
	if err == nil {
		conn, err = net.FileConn(f)
	}
	if err != nil {
		unix.Close(fds[1])
		return nil, nil, fmt.Errorf("rgnet: make a bell: %w", err)
	}
	return &bell{fd: fds[1]}, conn, nil
}

var stroke = []byte{1}

// ring makes gnet call OnTraffic. If the socket is full it rings already.
func (b *bell) ring() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fd >= 0 {
		unix.Write(b.fd, stroke)
	}
}

func (b *bell) remove() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fd >= 0 {
		unix.Close(b.fd)
		b.fd = -1
	}
}
