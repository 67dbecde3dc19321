package attach

import (
	"crypto/rand"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// patience is how long a reader may take to read.
	patience = time.Second
	// backlog is how many readers may wait. A queue that others fill makes
	// readers try again; it is short because each place in it waits for rest.
	backlog = 16
)

// endpoint is the socket from which others read. One goroutine serves it.
type endpoint struct {
	ln       *net.UnixListener
	document func() ([]byte, error)

	mu     sync.Mutex
	conn   net.Conn // of the reader that is served; guarded by mu
	closed bool     // guarded by mu
}

var errUsers = errors.New("attach: the kernel does not tell this user from others in this user namespace")

func listen(document func() ([]byte, error)) (*endpoint, error) {
	if !knownUser(os.Geteuid()) {
		return nil, errUsers
	}
	var nonce [nonceLen / 2]byte
	rand.Read(nonce[:])
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	file := os.NewFile(uintptr(fd), "rnet statistics")
	defer file.Close() // the listener has a descriptor of its own
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: name(os.Geteuid(), os.Getpid(), nonce)}); err != nil {
		return nil, os.NewSyscallError("bind", err)
	}
	if err := unix.Listen(fd, backlog); err != nil {
		return nil, os.NewSyscallError("listen", err)
	}
	ln, err := net.FileListener(file)
	if err != nil {
		return nil, err
	}
	e := &endpoint{ln: ln.(*net.UnixListener), document: document}
	go e.serve()
	return e, nil
}

func (e *endpoint) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	e.ln.Close()
	if e.conn != nil {
		e.conn.Close()
	}
}

// serve answers one reader after the other.
func (e *endpoint) serve() {
	for {
		conn, err := e.ln.AcceptUnix() // ended by a reader, or close
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors, perhaps
			time.Sleep(Rest) // ended by the clock
			continue
		}
		if !e.begin(conn) {
			conn.Close()
			return
		}
		if peer, err := credentials(conn); err == nil && int(peer.Uid) == os.Geteuid() {
			e.answer(conn)
			conn.Close()
			continue
		}
		conn.Close()
		time.Sleep(Rest) // ended by the clock
	}
}

// begin makes conn the one that close closes.
func (e *endpoint) begin(conn net.Conn) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.conn = conn
	return !e.closed
}

// answer writes the document. What a reader does not take is lost to it alone.
func (e *endpoint) answer(conn net.Conn) {
	document, err := e.document()
	if err != nil {
		return
	}
	conn.SetWriteDeadline(time.Now().Add(patience))
	conn.Write(document) // ended by the reader, the deadline, close
}

// credentials returns who is at the other end of a connection, as the kernel
// has it: a reader as it was when it connected, an endpoint as it was when it
// was opened.
func credentials(conn *net.UnixConn) (*unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	return cred, errors.Join(err, os.NewSyscallError("getsockopt SO_PEERCRED", credErr))
}
