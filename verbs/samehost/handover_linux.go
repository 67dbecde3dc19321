package samehost

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"

	"github.com/seed-b9b531af/ramjet/internal/passrights"
	"golang.org/x/sys/unix"
)

// A listening socket can be handed over to another process, with its names and with what
// lies in its queue: so there is no moment at which nobody listens. The owner stops accepting
// (Pause), sends the socket (HandOver), and closes its Listener, which then leaves the names alone.
// The other process makes a Listener of what it was sent (Adopt). Peers take the process that
// called listen last for the owner, so listen is called again.

// errPaused ends a wait for a listener that is about to be handed over.
var errPaused = errors.New("the listener accepts no more")

// Pause ends Serve, and returns when nothing of it runs any more: what comes from now on stays
// in the kernel's queue. Only Poll, HandOver and Close may follow.
func (l *Listener) Pause() {
	l.mu.Lock()
	if l.isClosed() || l.isPaused() {
		l.mu.Unlock()
		return
	}
	close(l.paused)
	w := l.watch
	l.watch = nil
	l.mu.Unlock()
	if w != nil {
		watching.remove(w)
	}
	l.serving.Lock() // who is in it leaves
	defer l.serving.Unlock()
}

func (l *Listener) isPaused() bool {
	select {
	case <-l.paused:
		return true
	default:
		return false
	}
}

// Poll returns the next peer that is admitted, and does not wait for one. Of peers that come
// meanwhile, without end perhaps, it looks at no more than lay in the queue.
func (l *Listener) Poll() (*Conn, error) {
	for range l.cfg.Backlog + 1 {
		if c, err := l.next(false); c != nil || err != nil {
			return c, err
		}
	}
	return nil, errNobody
}

// HandOver sends the sockets of listeners to a peer, with a packet. It does not wait. If
// there is an error the peer has none.
func HandOver(to *Conn, packet []byte, listeners ...*Listener) error {
	var fds []int
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	for _, l := range listeners {
		fd := -1
		var err error
		controlErr := l.raw.Control(func(lfd uintptr) { fd, err = unix.FcntlInt(lfd, unix.F_DUPFD_CLOEXEC, 0) })
		if err := errors.Join(controlErr, os.NewSyscallError("fcntl", err)); err != nil {
			return err
		}
		fds = append(fds, fd)
	}
	var err error
	controlErr := to.raw.Control(func(fd uintptr) {
		_, err = unix.SendmsgN(int(fd), packet, unix.UnixRights(fds...), nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	})
	if err := errors.Join(controlErr, os.NewSyscallError("sendmsg", err)); err != nil {
		return err
	}
	for _, l := range listeners {
		l.handed.Store(true)
	}
	return nil
}

// EndOfWords keeps the peer from sending more: reads return what it has sent, and then
// io.EOF.
func (c *Conn) EndOfWords() {
	c.raw.Control(func(fd uintptr) { unix.Shutdown(int(fd), unix.SHUT_RD) })
}

// Adopt is Listen with a socket that was handed over, which has the name. The descriptor is
// the Listener's, or closed.
func Adopt(cfg ListenConfig, fd int) (*Listener, error) {
	name, err := nameOfListening(cfg, fd)
	if err == nil && name != cfg.Name {
		err = fmt.Errorf("%w: its name is %q", errNotListening, name)
	}
	if err != nil {
		CloseReceived(fd)
		return nil, err
	}
	return relisten(cfg, fd)
}

// Adopt is Listen with a socket that was handed over by a process of our user, and stands in
// the directory. It has the names that it had, all of which have to be names that it may have.
func (d *Directory) Adopt(cfg ListenConfig, fd int, mayHave func(name string) bool) (*Listener, error) {
	first, err := nameOfListening(cfg, fd)
	var e *entries
	if err == nil {
		e, err = d.entries(cfg)
	}
	if err == nil {
		if err = e.adopt(path.Base(first), mayHave); err != nil {
			e.dir.Close()
		}
	}
	if err != nil {
		CloseReceived(fd)
		return nil, err
	}
	l, err := relisten(cfg, fd)
	if err != nil {
		e.remove()
		return nil, err
	}
	l.entries = e
	return l, nil
}

var errNotListening = errors.New("no listening socket of that name and type was handed over")

// nameOfListening returns the name of a listening socket, if it is of the right type.
func nameOfListening(cfg ListenConfig, fd int) (string, error) {
	if !IsUnix(fd, cfg.Type) {
		return "", errNotListening
	}
	listens, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if err != nil {
		return "", os.NewSyscallError("getsockopt SO_ACCEPTCONN", err)
	}
	bound, err := unix.Getsockname(fd)
	if err != nil {
		return "", os.NewSyscallError("getsockname", err)
	}
	at, ok := bound.(*unix.SockaddrUnix)
	if !ok || listens == 0 {
		return "", errNotListening
	}
	return at.Name, nil
}

// relisten makes a Listener of a listening socket. What lies in the queue has come under a rule
// that is not known: descriptors may be in it.
func relisten(cfg ListenConfig, fd int) (*Listener, error) {
	if err := unix.SetNonblock(fd, true); err != nil { // accept must not wait
		CloseReceived(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	passrights.Set(fd, 0)
	return listenOn(cfg, fd, false)
}

// adopt takes over what stands under a first name, if its other names may be had.
func (e *entries) adopt(first string, mayHave func(name string) bool) error {
	var err error
	controlErr := e.raw(func(fd uintptr) {
		dir := int(fd)
		var st unix.Stat_t
		if err = unix.Fstatat(dir, first, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return
		}
		if st.Mode&unix.S_IFMT != unix.S_IFSOCK || int(st.Uid) != os.Geteuid() {
			err = errNotListening
			return
		}
		e.first, e.id = first, idOf(&st)
		e.linked = e.links(dir)
		if slices.ContainsFunc(e.linked, func(name string) bool { return !mayHave(name) }) {
			err = errNotListening
			return
		}
		if st.Mode&0o777 != e.mode {
			err = unix.Fchmodat(dir, first, e.mode, 0)
		}
	})
	return errors.Join(controlErr, err)
}

// adoptAtMost is how many names of a directory are looked at for those of a socket that was
// handed over. Of more some stay until the socket is gone.
const adoptAtMost = 1 << 14

// links lists the names that the socket has beside its first one.
func (e *entries) links(dir int) []string {
	names, _ := e.dir.Readdirnames(adoptAtMost)
	return slices.DeleteFunc(names, func(name string) bool { return name == e.first || !e.has(dir, name) })
}
