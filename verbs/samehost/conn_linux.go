package samehost

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/passrights"
	"golang.org/x/sys/unix"
)

// Conn is a connected socket. Its methods may be called from any goroutine; one at a
// time may read.
type Conn struct {
	file *os.File // nonblocking, on the netpoller
	raw  syscall.RawConn
	peer Peer
	to   SocketID // that it was connected to, in a Directory
	// bare is set while no descriptor can have come: then closing cannot wait.
	bare atomic.Bool
}

// newConn takes fd, a socket of a type. A bare one has never taken descriptors.
func newConn(fd, typ int, bare bool) (*Conn, error) {
	if typ == unix.SOCK_STREAM && !bare {
		_ = inlineOutOfBand(fd)
	}
	c := &Conn{file: os.NewFile(uintptr(fd), "unix")}
	c.bare.Store(bare)
	var err error
	if c.raw, err = c.file.SyscallConn(); err == nil {
		c.peer, err = PeerOf(fd)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// DeniedError is a name that is taken, and not by somebody who is admitted.
type DeniedError struct {
	Peer Peer // zero if Full
	Full bool // its queue is full, so that all that is known is that the user is another
}

// Error says whose the name is.
func (e *DeniedError) Error() string {
	if e.Full {
		return "a process of another user listens, and its queue is full"
	}
	text := fmt.Sprintf("process %d of user %d listens", e.Peer.PID, e.Peer.UID)
	if err := CheckUser(); err != nil {
		text += ": " + err.Error()
	}
	return text
}

// FullError is a queue that is full, and not certainly that of our user. It wraps EAGAIN.
type FullError struct {
	UID int // whose it is, -1 if that is not known
}

// Error says whose the queue is.
func (e *FullError) Error() string {
	if e.UID < 0 {
		return "the queue of its socket is full, and nobody tells whose that is"
	}
	return fmt.Sprintf("the queue of its socket, of user %d, is full", e.UID)
}

// Is reports whether target is EAGAIN.
func (e *FullError) Is(target error) bool { return target == unix.EAGAIN }

// Dial connects to the first of names, abstract ones of sockets of a type
// (unix.SOCK_SEQPACKET), where a process listens that admit lets in, one of our user
// if admit is nil. It does not wait. Each name is looked at by itself. Dial passes over names that
// strangers have, names that a policy of the system keeps from us, and full queues. A full queue
// that is certainly our user's is not passed over, because TCP would lead to it too. The error
// wraps ECONNREFUSED if nobody listens, EAGAIN if a queue is full that may be that of a process
// that is let in, a *FullError unless it is certainly our user's, or too much of strangers waits to
// be closed; a *DeniedError tells that there are only others.
func Dial(typ int, admit func(Peer) bool, names ...string) (*Conn, error) {
	return dial(typ, admit, len(names), func(fd, i int) (whose owner, err error) {
		if err = connect(fd, names[i]); err == unix.EAGAIN {
			whose = owners.of(typ, names[i])
		}
		return whose, err
	})
}

// dial is Dial for names that connectTo knows by a number. It says too whose a name is
// whose queue is full (EAGAIN).
func dial(typ int, admit func(Peer) bool, names int, connectTo func(fd, name int) (whose owner, err error)) (*Conn, error) {
	if waiting.full() {
		return nil, os.NewSyscallError("connect", unix.EAGAIN)
	}
	var denied, full, forbidden error
	fd := spare.take(typ)
	defer func() {
		if fd >= 0 {
			spare.put(fd, typ)
		}
	}()
	for name := range names {
		if fd < 0 {
			var err error
			if fd, err = newSocket(typ); err != nil {
				return nil, err
			}
		}
		whose, err := connectTo(fd, name)
		switch {
		case err == unix.ECONNREFUSED || err == unix.EPROTOTYPE:
			continue // nobody, or a socket of another type, which is none of ours
		case err == unix.EAGAIN && whose != unknownUser && !whose.ours() && admit == nil:
			denied = &DeniedError{Full: true}
			continue
		case err == unix.EAGAIN && !whose.ours():
			full = &FullError{int(whose)}
			continue
		case err == unix.EACCES || err == unix.EPERM: // AppArmor, Landlock
			forbidden = os.NewSyscallError("connect", err)
			continue
		case err != nil:
			return nil, os.NewSyscallError("connect", err)
		}
		passrights.Set(fd, 0)
		c, err := newConn(fd, typ, false) // something may have come before
		fd = -1
		if err != nil {
			return nil, err
		}
		if admits(admit, c.peer) {
			return c, nil
		}
		denied = &DeniedError{Peer: c.peer}
		c.Close()
	}
	if err := cmp.Or(full, denied, forbidden); err != nil {
		return nil, err
	}
	return nil, os.NewSyscallError("connect", unix.ECONNREFUSED)
}

// spare is a socket that has found nobody. A program that dials where nobody
// listens does so again and again, and need not make and close one each time.
var spare spareSocket

type spareSocket struct {
	mu    sync.Mutex
	fd    int // guarded by mu; only with typ
	typ   int // guarded by mu; 0 if there is none
	timer *time.Timer
}

// spareTime is how long it is kept when nobody dials.
const spareTime = time.Second

// take returns the spare socket, -1 if there is none of the type.
func (s *spareSocket) take(typ int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.typ != typ || typ == 0 {
		return -1
	}
	s.typ = 0
	return s.fd
}

// put keeps a socket that is not connected, or closes it.
func (s *spareSocket) put(fd, typ int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.typ != 0 {
		unix.Close(fd)
		return
	}
	s.fd, s.typ = fd, typ
	if s.timer == nil {
		s.timer = time.AfterFunc(spareTime, s.drop)
	} else {
		s.timer.Reset(spareTime)
	}
}

func (s *spareSocket) drop() {
	if fd := s.takeAny(); fd >= 0 {
		unix.Close(fd)
	}
}

func (s *spareSocket) takeAny() int {
	s.mu.Lock()
	typ := s.typ
	s.mu.Unlock()
	return s.take(typ)
}

func newSocket(typ int) (int, error) {
	if lastOverflow.Load() == 0 {
		_, _ = overflowUser() // as long as there are descriptors
	}
	fd, err := unix.Socket(unix.AF_UNIX, typ|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	return fd, os.NewSyscallError("socket", err)
}

func connect(fd int, name string) error {
	for {
		if err := unix.Connect(fd, &unix.SockaddrUnix{Name: name}); err != unix.EINTR {
			return err
		}
	}
}

func admits(admit func(Peer) bool, p Peer) bool {
	if admit == nil {
		return p.SameUser()
	}
	return admit(p)
}

// Peer returns who is at the other end.
func (c *Conn) Peer() Peer { return c.peer }

// To returns the socket in a Directory that it was dialed at.
func (c *Conn) To() SocketID { return c.to }

// Read is [Receive] for those who expect no descriptors: they are closed, elsewhere.
func (c *Conn) Read(b []byte) (int, error) {
	n, fds, err := Receive(c.raw, b)
	CloseReceived(fds...)
	return n, err
}

// Write is that of an *os.File: a packet at a time where the type has packets.
func (c *Conn) Write(b []byte) (int, error) { return c.file.Write(b) }

// SetDeadline is that of an *os.File.
func (c *Conn) SetDeadline(t time.Time) error { return c.file.SetDeadline(t) }

// SetReadDeadline is that of an *os.File.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.file.SetReadDeadline(t) }

// SetWriteDeadline is that of an *os.File.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.file.SetWriteDeadline(t) }

// SyscallConn gives access to the descriptor.
func (c *Conn) SyscallConn() (syscall.RawConn, error) { return c.raw, nil }

// Watch has take called, on a goroutine of its own, when something is there to be read or the
// peer has hung up, and not again before it has returned. What runs of it when stop is called
// goes on. Close does not call take.
func (c *Conn) Watch(take func()) (stop func(), err error) {
	one, err := watching.add(c.raw, take)
	if err != nil {
		return nil, err
	}
	return func() { watching.remove(one) }, nil
}

// TakeDescriptors lets the peer send descriptors, and reports whether it could not
// before.
func (c *Conn) TakeDescriptors() (could bool) {
	c.bare.Store(false)
	c.raw.Control(func(fd uintptr) { could = passrights.Set(int(fd), 1) })
	return could
}

// Refuse says last, if the peer can take it at once, and closes.
func (c *Conn) Refuse(last []byte) error {
	if len(last) > 0 {
		c.raw.Control(func(fd uintptr) {
			unix.SendmsgN(int(fd), last, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		})
	}
	return c.Close()
}

// Close hangs up. It never waits: if something is unread, which may have descriptors
// with it, another thread closes the socket.
func (c *Conn) Close() error {
	if c.bare.Load() || c.raw == nil || !hasUnread(c.raw, unix.SHUT_RDWR) {
		return c.file.Close()
	}
	last := lastHold{c.file, -1}
	c.raw.Control(func(fd uintptr) { // without a descriptor left it goes without
		last.fd, _ = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
	})
	waiting.add(last)
	return nil
}

// lastHold closes a socket with a copy of its descriptor in hand. A goroutine in a Read or
// a Write of the file gives that up after its Close, and must not be the last.
type lastHold struct {
	file *os.File
	fd   int // -1: none
}

func (h lastHold) Close() error {
	err := h.file.Close() // ended by those who use the file, whom it has woken
	if h.fd >= 0 {
		unix.Close(h.fd)
	}
	return err
}

// Drop closes a connection at a Unix socket that is none of this package's, and does not wait
// either for what the peer may have sent. If that is unread the peer sees no end before the reset.
func Drop(c io.Closer) {
	if s, ok := c.(syscall.Conn); ok {
		if raw, err := s.SyscallConn(); err == nil && hasUnread(raw, unix.SHUT_RD) {
			waiting.add(c)
			return
		}
	}
	c.Close()
}

// hasUnread shuts a connection down, for reads at least, so that nothing more can come, and reports
// whether something has come that nobody has read.
func hasUnread(raw syscall.RawConn, how int) bool {
	found := false // by a socket that is closed already
	raw.Control(func(fd uintptr) {
		unix.Shutdown(int(fd), how)
		// With this a packet without data can be told from the end, by MSG_CTRUNC.
		unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
		_ = inlineOutOfBand(int(fd))
		var b [1]byte
		peek := func() (int, int, error) {
			n, _, flags, _, err := unix.Recvmsg(int(fd), b[:], nil, unix.MSG_PEEK|unix.MSG_DONTWAIT)
			return n, flags, err
		}
		n, flags, err := peek()
		if errors.Is(err, unix.ECONNRESET) { // said once: the peer has not read all of ours
			n, flags, err = peek()
		}
		found = err != nil || n > 0 || flags&unix.MSG_CTRUNC != 0
	})
	return found
}

// inlineOutOfBand has reads of a stream return out-of-band data in its place. It can have
// descriptors too, which a read that passes it over closes.
func inlineOutOfBand(fd int) error {
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_OOBINLINE, 1)
}

// ErrTruncated is a packet longer than was allowed, or with descriptors for which there
// was no room.
var ErrTruncated = errors.New("packet is too long, or has more descriptors than could be taken")

// control holds the control messages of a packet: with room for all descriptors that
// it can have, and for the credentials that hasUnread asks for, the kernel closes
// none, which it would do in the thread that reads. The terms of its length: struct cmsghdr,
// SCM_MAX_FD descriptors, padding; cmsghdr, ucred, padding.
type control [16 + 4*253 + 4 + 16 + 12 + 4]byte

var controls = sync.Pool{New: func() any { return new(control) }}

// Receive waits for one packet, or a piece of a stream. The descriptors that come with
// it are the caller's. It ends with a packet, the peer's hang-up (io.EOF), a deadline or Close.
func Receive(raw syscall.RawConn, b []byte) (n int, fds []int, err error) {
	var flags int
	var errno error
	ended := false
	err = raw.Read(func(fd uintptr) bool {
		oob := controls.Get().(*control) // not for as long as it waits
		defer controls.Put(oob)
		for {
			var oobn int
			n, oobn, flags, _, errno = unix.Recvmsg(int(fd), b, oob[:], unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
			switch {
			case errno == unix.EINTR:
			case errno == nil && n == 0 && oobn == 0 && !ended:
				// The kernel looks for a packet first, and then whether the peer
				// has hung up: a packet that came in between is behind the end.
				ended = true
			case errno == nil:
				fds = rightsIn(oob[:oobn])
				return true
			default:
				return errno != unix.EAGAIN
			}
		}
	})
	if err = cmp.Or(err, os.NewSyscallError("recvmsg", errno)); err != nil {
		return 0, nil, err
	}
	switch {
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
		CloseReceived(fds...)
		return 0, nil, ErrTruncated
	case n == 0 && len(fds) == 0:
		return 0, nil, io.EOF
	}
	return n, fds, nil
}

func rightsIn(oob []byte) []int {
	var fds []int
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	for i := range messages {
		if got, err := unix.ParseUnixRights(&messages[i]); err == nil {
			fds = append(fds, got...)
		}
	}
	return fds
}
