package rcm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The bootstrap sockets: SOCK_SEQPACKET, one message a packet, in the
// abstract namespace, which belongs to the network namespace as TCP's ports
// do and leaves no file behind.

// softName is the abstract name of the listener on one address; net.Listen
// for "tcp6" and "tcp" make different ones of the unspecified address.
func softName(addr netip.AddrPort, v6Only bool) string {
	name := "@ramjet/rcm1/" + addr.String()
	if v6Only && addr.Addr() == netip.IPv6Unspecified() {
		name += "/v6only"
	}
	return name
}

// softNames lists the listeners that may serve target, the most specific
// first, as TCP looks for them.
func softNames(target netip.AddrPort) [3]string {
	dual := netip.AddrPortFrom(netip.IPv6Unspecified(), target.Port())
	if target.Addr().Is4() {
		v4 := netip.AddrPortFrom(netip.IPv4Unspecified(), target.Port())
		return [3]string{softName(target, false), softName(v4, false), softName(dual, false)}
	}
	return [3]string{softName(target, false), softName(dual, true), softName(dual, false)}
}

// socket is a connected bootstrap socket. One goroutine at a time may
// receive.
type socket struct {
	file *os.File // nonblocking, on the netpoller
	peer Peer
}

func newSocket(fd int) (*socket, error) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("getsockopt SO_PEERCRED", err)
	}
	return &socket{
		file: os.NewFile(uintptr(fd), "rcm"),
		peer: Peer{PID: int(cred.Pid), UID: cred.Uid, GID: cred.Gid},
	}, nil
}

func openSocket() (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	return fd, os.NewSyscallError("socket", err)
}

const (
	// A listener whose queue in the kernel is full gets time to empty it,
	// but a dial must not wait long for RDMA when TCP would do.
	fullQueueTries = 8
	fullQueueWait  = time.Millisecond // doubled after each try
)

// dialSoft connects to the first of names where somebody listens whom allow
// trusts. The error wraps ErrNoListener, ErrPeerDenied, ErrBusy or what ended
// ctx.
func dialSoft(ctx context.Context, names []string, allow func(Peer) bool) (*socket, error) {
	outcome := ErrNoListener
	fd := -1
	defer func() {
		if fd >= 0 {
			unix.Close(fd)
		}
	}()
	for _, name := range names {
		if fd < 0 {
			var err error
			if fd, err = openSocket(); err != nil {
				return nil, err
			}
		}
		err := connectName(ctx, fd, name)
		if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.EPROTOTYPE) {
			continue // nobody, or a socket of another kind, which is none of ours
		}
		if err != nil {
			return nil, err
		}
		s, err := newSocket(fd)
		fd = -1
		if err != nil {
			return nil, err
		}
		if allow(s.peer) {
			return s, nil
		}
		outcome = fmt.Errorf("%w: process %d of user %d listens", ErrPeerDenied, s.peer.PID, s.peer.UID)
		s.close()
	}
	return nil, outcome
}

func connectName(ctx context.Context, fd int, name string) error {
	sa := &unix.SockaddrUnix{Name: name}
	wait := fullQueueWait
	for try := 0; ; try++ {
		err := unix.Connect(fd, sa)
		switch {
		case err == unix.EINTR:
			continue
		case err != unix.EAGAIN:
			return os.NewSyscallError("connect", err)
		case try == fullQueueTries:
			return fmt.Errorf("%w: its queue stays full", ErrBusy)
		}
		// A Unix socket does not say when its listener's queue has room, so
		// this wait ends with the timer or ctx.
		select {
		case <-ctx.Done():
			return contextError(ctx)
		case <-time.After(wait):
			wait *= 2
		}
	}
}

func (s *socket) close() error { return s.file.Close() }

func (s *socket) send(m *message) error {
	_, err := s.file.Write(m.appendTo(make([]byte, 0, maxMessage)))
	return hangup(err)
}

// receive waits for one message. The wait ends with a message, the hang-up
// of the peer, close, or interruptible.
func (s *socket) receive() (message, error) {
	var buf [maxMessage + 1]byte // one more, to see that a packet is too long
	n, err := s.file.Read(buf[:])
	if errors.Is(err, unix.ECONNRESET) {
		// The peer closed without reading all that we sent. The kernel says
		// so before it gives out what the peer sent, which may be a REJ.
		n, err = s.file.Read(buf[:])
	}
	if err != nil {
		return message{}, hangup(err)
	}
	return parseMessage(buf[:n])
}

// expect receives one message of the given kind.
func (s *socket) expect(kind messageKind) (message, error) {
	m, err := s.receive()
	switch {
	case err != nil:
		return m, err
	case m.kind == kindReject:
		return m, &RejectedError{PrivateData: m.private, Reason: int(m.reason)}
	case m.kind == kindDisconnect:
		return m, errHungUp
	case m.kind != kind:
		return m, fmt.Errorf("%w: %v instead of %v", ErrMalformed, m.kind, kind)
	}
	return m, nil
}

// errHungUp is a peer that closed its socket without a word.
var errHungUp = fmt.Errorf("peer hung up: %w", syscall.ECONNRESET)

// hangup gives the ways in which the kernel reports a closed peer one error.
func hangup(err error) error {
	if err == io.EOF || errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
		return errHungUp
	}
	return err
}

var longAgo = time.Unix(1, 0)

// interruptible runs op, whose reads and writes on s end when ctx does. If op
// fails and ctx has ended, the error is that of ctx.
func (s *socket) interruptible(ctx context.Context, op func() error) error {
	fired := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		s.file.SetDeadline(longAgo)
		close(fired)
	})
	err := op()
	if !stop() {
		<-fired // ends with the function above, which does not block
		s.file.SetDeadline(time.Time{})
	}
	if err != nil && ctx.Err() != nil {
		return contextError(ctx)
	}
	return err
}

// waiting reports whether the peer is there and waits for us, without
// waiting for it.
func (s *socket) waiting() bool {
	raw, err := s.file.SyscallConn()
	if err != nil {
		return false
	}
	alive := false
	raw.Control(func(fd uintptr) {
		var b [1]byte
		_, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		alive = err == unix.EAGAIN || err == unix.EINTR
	})
	return alive
}
