package samehost

import (
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/passrights"
	"golang.org/x/sys/unix"
)

// ListenConfig says how to listen.
type ListenConfig struct {
	Type    int    // unix.SOCK_SEQPACKET or unix.SOCK_STREAM
	Name    string // abstract: "@..."
	Backlog int    // of the kernel
	Others  bool   // in a Directory: processes of other users can connect too
	// AnyPlace has the listener stand in another directory than that of its user's
	// number, if that belongs to somebody else: who looks for it looks at all.
	AnyPlace bool
	// Admit says whether a peer may connect; nil means those of our user. It is
	// called by Accept, so it must not wait.
	Admit func(Peer) bool
	// Denied is called by Accept for each peer that was not admitted, if it is set.
	Denied func(Peer)
	// Denial is what those are sent.
	Denial []byte
	// Bound is called by Listen when it has the name, and nobody can connect to it yet. Its
	// error is that of Listen, which leaves the name then.
	Bound func() error
}

// Listener accepts peers that are admitted.
type Listener struct {
	cfg    ListenConfig
	file   *os.File
	raw    syscall.RawConn
	closed chan struct{}

	accepting sync.Mutex // held while Accept uses file
	serving   sync.Mutex // held while Serve takes what is there

	paused chan struct{} // closed by Pause
	bare   bool          // the kernel lets no descriptors into the queue
	handed atomic.Bool   // another process has the socket, and its names

	mu       sync.Mutex    // guards closed and paused being closed
	watch    *watch        // of Serve, nil without; guarded by mu
	entries  *entries      // in a Directory, nil without
	deadline time.Time     // guarded by mu
	moved    chan struct{} // closed, and made anew, with each new deadline; guarded by mu
}

// Listen makes the socket. If the name is taken the error wraps EADDRINUSE.
func Listen(cfg ListenConfig) (*Listener, error) {
	return listen(cfg, func(fd int) error { return unix.Bind(fd, &unix.SockaddrUnix{Name: cfg.Name}) })
}

func listen(cfg ListenConfig, bind func(fd int) error) (*Listener, error) {
	fd, err := newSocket(cfg.Type)
	if err != nil {
		return nil, err
	}
	bare := passrights.Set(fd, 0)
	if err := bind(fd); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("bind", err)
	}
	if cfg.Bound != nil {
		if err := cfg.Bound(); err != nil {
			unix.Close(fd)
			return nil, err
		}
	}
	return listenOn(cfg, fd, bare)
}

// listenOn has a bound socket listen.
func listenOn(cfg ListenConfig, fd int, bare bool) (*Listener, error) {
	if err := unix.Listen(fd, cfg.Backlog); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("listen", err)
	}
	l := &Listener{
		cfg: cfg, bare: bare, file: os.NewFile(uintptr(fd), cfg.Name),
		closed: make(chan struct{}), paused: make(chan struct{}), moved: make(chan struct{}),
	}
	var err error
	if l.raw, err = l.file.SyscallConn(); err != nil {
		l.file.Close()
		return nil, err
	}
	return l, nil
}

// Name returns the name.
func (l *Listener) Name() string { return l.cfg.Name }

// ID returns which socket in a Directory it is.
func (l *Listener) ID() SocketID { return l.entries.id }

// SetDeadline makes Accept fail after t with an error that wraps
// os.ErrDeadlineExceeded; zero means never.
func (l *Listener) SetDeadline(t time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isClosed() {
		return net.ErrClosed
	}
	l.deadline = t
	close(l.moved)
	l.moved = make(chan struct{})
	return l.file.SetReadDeadline(t)
}

// await waits for an event where the netpoller has no part in it. It ends with the
// event, the deadline or Close.
func (l *Listener) await(event <-chan struct{}) error {
	for {
		l.mu.Lock()
		deadline, moved := l.deadline, l.moved
		l.mu.Unlock()
		var over <-chan time.Time
		if !deadline.IsZero() {
			over = time.After(time.Until(deadline))
		}
		select {
		case <-event:
			return nil
		case <-l.closed:
			return net.ErrClosed
		case <-l.paused:
			return errPaused
		case <-over:
			return os.ErrDeadlineExceeded
		case <-moved:
		}
	}
}

func (l *Listener) isClosed() bool {
	select {
	case <-l.closed:
		return true
	default:
		return false
	}
}

// Accept waits for the next peer that is admitted. It ends with Close, with an error
// that wraps net.ErrClosed, and with the deadline.
func (l *Listener) Accept() (*Conn, error) {
	for {
		if c, err := l.next(true); c != nil || err != nil {
			return c, err
		}
	}
}

// Serve calls handle for each peer that is admitted, for one after the other, until
// Close, which does not wait for it. It takes the place of Accept, and of a goroutine
// that waits there: all listeners that are served have one together.
func (l *Listener) Serve(handle func(*Conn)) error {
	w, err := watching.add(l.raw, func() {
		l.serving.Lock()
		defer l.serving.Unlock()
		for !l.isPaused() {
			c, err := l.next(false)
			if err != nil {
				return // nobody is left, or the listener is closed or paused
			}
			if c != nil {
				handle(c)
			}
		}
	})
	if err != nil {
		return err
	}
	l.mu.Lock()
	over := l.isClosed() || l.isPaused()
	if !over {
		l.watch = w
	}
	l.mu.Unlock()
	if over {
		watching.remove(w)
		return net.ErrClosed
	}
	return nil
}

// errNobody is a queue without a connection in it.
var errNobody = errors.New("nobody has connected")

// next takes the next peer, and waits for one if it is to. It returns nil if that is not
// admitted.
func (l *Listener) next(wait bool) (*Conn, error) {
	for room := waiting.room(); room != nil; room = waiting.room() {
		if err := l.await(room); err != nil { // ended by a closer that takes the next one
			return nil, err
		}
	}
	fd, err := l.accept(wait)
	if err != nil {
		return nil, err
	}
	c, err := newConn(fd, l.cfg.Type, l.bare)
	if err != nil {
		return nil, nil // there is nothing that is known of it
	}
	if admits(l.cfg.Admit, c.peer) {
		return c, nil
	}
	c.Refuse(l.cfg.Denial)
	if l.cfg.Denied != nil {
		l.cfg.Denied(c.peer)
	}
	return nil, nil
}

// accept takes the next connection, whoever it is. What the process lacks to take it
// (descriptors, memory) may be there again a little later.
func (l *Listener) accept(wait bool) (int, error) {
	const minPause, maxPause = 5 * time.Millisecond, time.Second
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		fd, err := l.tryAccept(wait)
		var errno syscall.Errno
		if err == nil || !errors.As(err, &errno) {
			return fd, err
		}
		// The connection stays in the queue, so the descriptor would be readable
		// again at once; this wait ends with the timer.
		over := make(chan struct{})
		timer := time.AfterFunc(pause, func() { close(over) })
		err = l.await(over)
		timer.Stop()
		if err != nil {
			return -1, err
		}
	}
}

// tryAccept takes a connection, and waits for one if it is to. An Errno is what accept4
// said.
func (l *Listener) tryAccept(wait bool) (int, error) {
	l.accepting.Lock()
	defer l.accepting.Unlock()
	fd := -1
	var errno error
	accept := func(lfd uintptr) bool {
		for {
			fd, _, errno = unix.Accept4(int(lfd), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
			if errno != unix.EINTR && errno != unix.ECONNABORTED {
				return errno != unix.EAGAIN
			}
		}
	}
	var err error
	if wait {
		err = l.raw.Read(accept) // ended by a connection, an error, the deadline or Close
	} else {
		err = l.raw.Control(func(lfd uintptr) {
			if !accept(lfd) {
				errno = errNobody
			}
		})
	}
	if l.isClosed() {
		CloseReceived(fd)
		return -1, net.ErrClosed
	}
	if err != nil {
		return -1, err
	}
	return fd, errno
}

// Close stops listening: the name is free when it returns. Peers that nobody has
// accepted are hung up on. A socket that was handed over goes on to listen.
func (l *Listener) Close() error {
	l.mu.Lock()
	if l.isClosed() {
		l.mu.Unlock()
		return net.ErrClosed
	}
	close(l.closed)
	// Accept leaves, so that nobody else has the last hold on the file
	_ = l.file.SetReadDeadline(time.Unix(1, 0))
	w := l.watch
	l.mu.Unlock()
	switch {
	case l.entries == nil:
	case l.handed.Load():
		l.entries.leave()
	default: // while we live: nobody takes them for those of the dead
		l.entries.remove()
	}
	if w != nil {
		watching.remove(w)
	}
	l.accepting.Lock()
	defer l.accepting.Unlock()
	if l.bare {
		return l.file.Close()
	}
	// The kernel closes what lies in the queue, after it has given back the name.
	done := make(chan struct{})
	go func() {
		defer close(done)
		closeInterrupted(l.file)
	}()
	select { // ended by the close, or the timer
	case <-done:
	case <-time.After(closeWithin):
	}
	return nil
}
