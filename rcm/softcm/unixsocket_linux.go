package softcm

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"

	"github.com/seed-b9b531af/ramjet/internal/passrights"
	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/handshake"
	"github.com/seed-b9b531af/ramjet/verbs/samehost"
	"golang.org/x/sys/unix"
)

// Beside a Unix socket at which a server listens stands a bootstrap socket with an abstract
// name that is made of the Unix socket's identity: of the device and inode of its file,
// which nobody else has while it is bound, or of its own abstract name.
//
// An abstract name can be reached by processes that do not see the path, or may not write
// there, and can be taken by others than the server. So both sides have the kernel show who
// they are:
//
//  1. The dialer connects to the Unix socket, as a plain peer would. That the kernel lets it
//     do so is its permission. The kernel says which process listens there (SO_PEERCRED): it
//     must be the one at the bootstrap socket.
//  2. The acceptor sends SHOW, and takes descriptors from then on.
//  3. The dialer sends REQ, and that connection with it. The acceptor asks the kernel to
//     which process and address it leads: to its own.
//
// The dialer's end has a name by which the server knows the connection, when it comes to it
// among those of plain peers, and drops it.

// UnixSocketAt returns the Unix socket that has an address now, of the network "unix" or
// "unixpacket". The error of a path is that of stat, which does not know the network.
func UnixSocketAt(network, address string) (UnixSocket, error) {
	s := UnixSocket{Address: address, Packets: network == "unixpacket"}
	if s.abstract() {
		return s, nil
	}
	var st unix.Stat_t
	if err := unix.Stat(address, &st); err != nil {
		return s, &os.PathError{Op: "stat", Path: address, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return s, fmt.Errorf("rcm: %s is not a socket: %w", address, unix.ECONNREFUSED)
	}
	s.device, s.inode = uint64(st.Dev), st.Ino
	return s, nil
}

// MayConnect returns nil if this process may connect to the socket, as far as that can be
// told without doing it.
func (s UnixSocket) MayConnect() error {
	if s.abstract() {
		return nil
	}
	if err := unix.Faccessat(unix.AT_FDCWD, s.Address, unix.W_OK, unix.AT_EACCESS); err != nil {
		return &os.PathError{Op: "access", Path: s.Address, Err: err}
	}
	return nil
}

func (s UnixSocket) abstract() bool { return s.Address == "" || strings.HasPrefix(s.Address, "@") }

// name is the abstract name of the bootstrap socket.
func (s UnixSocket) name() string {
	if s.abstract() { // of up to 107 bytes, as long as a name may be
		sum := sha256.Sum256([]byte(s.Address))
		return fmt.Sprintf("@ramjet/rcm2/%s@%x", s.kind(), sum[:16])
	}
	return fmt.Sprintf("@ramjet/rcm2/%s/%x:%x", s.kind(), s.device, s.inode)
}

// sockType is the socket's type. Sockets of the two do not reach each other.
func (s UnixSocket) sockType() int {
	if s.Packets {
		return unix.SOCK_SEQPACKET
	}
	return unix.SOCK_STREAM
}

// At returns the fabric of a Unix socket: its listener stands beside the one there, and its
// routes lead to that, wherever addr says. In a Directory nobody is met.
func (f *fabric) At(s UnixSocket) rcm.Fabric {
	return &fabric{device: f.device, allow: f.allow, socket: &s}
}

// Given returns the fabric of a Unix socket whose listening end, c, this process did not open:
// systemd did, or the process before it. The kernel names to those who connect the process that
// has called listen last. So Listen calls it for c, once it has the name beside the socket:
// of several processes that share a socket, the one that serves dials is the one that is named.
func (f *fabric) Given(c syscall.Conn) rcm.Fabric {
	given := *f
	given.given = c
	return &given
}

// claim has the kernel name this process as the one that listens at the socket that it was
// given, unless the socket is not reached at its address: its file may be another by now,
// of another mount or network namespace, or not for this user. Then who is named does not change,
// as far as that can be told before: of two sockets at which one process listens it cannot.
func (f *fabric) claim() error {
	err := f.socket.mayBeReached(f.given)
	if err == nil {
		err = listenAgain(f.given)
	}
	if err == nil {
		err = f.socket.checkLeadsTo(os.Getpid())
	}
	if err == nil || errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.ENOBUFS) {
		return err // what the process lacks says nothing of the socket
	}
	return fmt.Errorf("%w: %w", ErrNotReached, err)
}

// mayBeReached returns nil if the address leads to the socket that c is, or to one at which the
// same process listens.
func (s UnixSocket) mayBeReached(c syscall.Conn) error {
	now, err := UnixSocketAt(s.kind(), s.Address)
	if err == nil {
		err = s.MayConnect()
	}
	if err != nil {
		return err
	}
	if now != s { // whoever is there need not be asked
		return s.leadsElsewhere()
	}
	var listens samehost.Peer
	err = control(c, func(fd int) (err error) {
		listens, err = samehost.PeerOf(fd)
		return err
	})
	if err != nil {
		return err
	}
	return s.checkLeadsTo(listens.PID)
}

// control calls f with the descriptor of c.
func control(c syscall.Conn, f func(fd int) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	controlErr := raw.Control(func(fd uintptr) { err = f(int(fd)) })
	return errors.Join(controlErr, err)
}

// listenAgain calls listen for a socket that listens. Its queue is then as long as the host
// allows (somaxconn), as if package net had opened it. It is not known how long it was.
func listenAgain(c syscall.Conn) error {
	return control(c, func(fd int) error {
		listens, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
		switch {
		case err != nil:
			return os.NewSyscallError("getsockopt SO_ACCEPTCONN", err)
		case listens == 0:
			return errors.New("it does not listen")
		}
		return os.NewSyscallError("listen", unix.Listen(fd, math.MaxInt32))
	})
}

// checkLeadsTo connects to the socket, as a dialer does that shows that it may, and returns
// nil if that leads to a process, of which the kernel says that it listens there.
func (s UnixSocket) checkLeadsTo(pid int) error {
	fd, err := s.connectPlain()
	if errors.Is(err, unix.EAGAIN) {
		return nil // its queue is full, and dialers find out where it leads
	}
	if err != nil {
		return err
	}
	defer samehost.CloseReceived(fd)
	if !s.leadsTo(fd, pid) {
		return s.leadsElsewhere()
	}
	return nil
}

func (s UnixSocket) leadsElsewhere() error {
	return fmt.Errorf("%s leads to another socket", s.Address)
}

// resolveUnix is resolve for a Unix socket.
func (f *fabric) resolveUnix() (*route, error) {
	sock, err := dial([]string{f.socket.name()}, f.allow)
	if err != nil {
		return nil, err
	}
	r := &route{device: f.device, local: netip.AddrPortFrom(UnixSocketAddr.Addr(), sourcePort()), remote: UnixSocketAddr, unix: f.socket}
	r.sock.Store(sock)
	return r, nil
}

// connectPlain connects to the Unix socket as who shows that it may. Whoever listens there can send
// something to the descriptor, so samehost.CloseReceived closes it.
func (s UnixSocket) connectPlain() (fd int, err error) {
	fd, err = unix.Socket(unix.AF_UNIX, s.sockType()|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	passrights.Set(fd, 0)
	var nonce [16]byte
	rand.Read(nonce[:])
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("%s%x", proofPrefix, nonce)}); err != nil {
		unix.Close(fd)
		return -1, os.NewSyscallError("bind", err)
	}
	for {
		if err = unix.Connect(fd, &unix.SockaddrUnix{Name: s.Address}); err != unix.EINTR {
			break
		}
	}
	if err != nil {
		unix.Close(fd)
		return -1, os.NewSyscallError("connect", err)
	}
	return fd, nil
}

// Drop closes a connection that was accepted at a Unix socket and that nobody is to have. Whoever
// may connect there can have sent descriptors whose last close waits: Drop does not.
func Drop(c net.Conn) { samehost.Drop(c) }

// show connects to the Unix socket, and returns the connection if it leads to the listener
// of the bootstrap socket and that wants to see it. It ends with the listener's word, its
// hang-up or interruptible.
func (r *route) show() (fd int, err error) {
	fd, err = r.unix.connectPlain()
	if errors.Is(err, unix.EAGAIN) {
		return -1, fmt.Errorf("%w: %w", rcm.ErrBusy, err)
	}
	if err != nil {
		return -1, fmt.Errorf("%w: %w", rcm.ErrNoListener, err)
	}
	there, err := samehost.PeerOf(fd)
	peer := r.sock.Load().Peer()
	switch {
	case err != nil:
	case peer.PID == 0:
		err = fmt.Errorf("%w: a process of a PID namespace that this one does not see listens", rcm.ErrPeerDenied)
	case there.PID != peer.PID || there.UID != peer.UID:
		err = fmt.Errorf("%w: process %d listens at %s, and process %d beside it", rcm.ErrPeerDenied, there.PID, r.unix.Address, peer.PID)
	default:
		_, err = r.sock.Load().expect(handshake.KindShow)
	}
	if err != nil {
		samehost.CloseReceived(fd)
		return -1, err
	}
	return fd, nil
}

// sendShown sends a message, and a descriptor with it.
func (s *socket) sendShown(m *handshake.Message, fd int) error {
	raw, err := s.SyscallConn()
	if err != nil {
		return err
	}
	packet := m.AppendTo(make([]byte, 0, handshake.MaxMessage))
	var sent error
	err = raw.Write(func(to uintptr) bool { // ended by room, the deadline or Close
		for {
			_, sent = unix.SendmsgN(int(to), packet, unix.UnixRights(fd), nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
			if sent != unix.EINTR {
				return sent != unix.EAGAIN
			}
		}
	})
	if err != nil {
		return err
	}
	return hangup(os.NewSyscallError("sendmsg", sent))
}

// receiveFirst receives a peer's first message. At a Unix socket the peer has to show with it
// that it may connect there.
func (l *listener) receiveFirst(sock *socket) (handshake.Message, error) {
	if l.f.socket == nil {
		return sock.receive()
	}
	sock.TakeDescriptors()
	if err := sock.send(&handshake.Message{Kind: handshake.KindShow}); err != nil {
		return handshake.Message{}, err
	}
	raw, err := sock.SyscallConn()
	if err != nil {
		return handshake.Message{}, err
	}
	var buf [handshake.MaxMessage]byte
	// ended by a message, the hang-up, the deadline or Close
	n, fds, err := samehost.Receive(raw, buf[:])
	if errors.Is(err, samehost.ErrTruncated) {
		err = fmt.Errorf("%w: %w", rcm.ErrMalformed, err)
	}
	if err != nil {
		return handshake.Message{}, hangup(err)
	}
	sock.shown = len(fds) == 1 && l.f.socket.leadsHere(fds[0])
	samehost.CloseReceived(fds...)
	return handshake.Parse(buf[:n])
}

// leadsHere reports whether a connection, which a peer has shown, is to the Unix socket at
// which this process listens. Of two that a process has bound to paths of the same words,
// after it changed its working directory, one cannot be told from the other.
func (s UnixSocket) leadsHere(fd int) bool { return s.leadsTo(fd, os.Getpid()) }

// leadsTo is leadsHere for any process.
func (s UnixSocket) leadsTo(fd, pid int) bool {
	if !samehost.IsUnix(fd, s.sockType()) {
		return false
	}
	to, err := unix.Getpeername(fd)
	if at, ok := to.(*unix.SockaddrUnix); err != nil || !ok || at.Name != s.Address {
		return false
	}
	listens, err := samehost.PeerOf(fd)
	return err == nil && listens.PID == pid
}
