package softcm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"syscall"
	"time"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/handshake"
	"github.com/seed-b9b531af/ramjet/verbs/samehost"
	"golang.org/x/sys/unix"
)

// The bootstrap sockets: SOCK_SEQPACKET, one message a packet, in the
// abstract namespace, which belongs to the network namespace as TCP's ports
// do and leaves no file behind.

// nameOf is the abstract name of the listener on one address.
func nameOf(addr netip.AddrPort) string { return "@ramjet/rcm2/" + addr.String() }

// name is nameOf in the fabric's port space.
func (f *fabric) name(addr netip.AddrPort) string {
	if f.datagrams {
		return "@ramjet/rcm2/udp/" + addr.String()
	}
	return nameOf(addr)
}

// listenNames lists the names that a listener on addr has: one, or two if it
// serves both families.
func (f *fabric) listenNames(addr netip.AddrPort, v6Only bool) []string {
	if f.socket != nil {
		return []string{f.socket.name()}
	}
	names := []string{f.name(addr)}
	if addr.Addr() == netip.IPv6Unspecified() && !v6Only {
		names = append(names, f.name(netip.AddrPortFrom(netip.IPv4Unspecified(), addr.Port())))
	}
	return names
}

// namesFor lists the listeners that may serve target, the most specific
// first, as TCP looks for them. Each costs a dial that finds nobody a system
// call.
func (f *fabric) namesFor(target netip.AddrPort) [2]string {
	all := netip.IPv6Unspecified()
	if target.Addr().Is4() {
		all = netip.IPv4Unspecified()
	}
	return [2]string{f.name(target), f.name(netip.AddrPortFrom(all, target.Port()))}
}

// socket is a connected bootstrap socket, over which no descriptors come before it is
// the QP's, but for that with the first message at a Unix socket. One goroutine at a time
// may receive.
type socket struct {
	*samehost.Conn
	met    bool              // in a directory: the peer may be in another network namespace
	at     samehost.SocketID // there, of a listener
	known  bool              // the kernel's word is enough to let the peer in; of a listener
	proven bool              // both sides have shown that they have the key
	shown  bool              // the peer may connect to the Unix socket; of a listener
	asks   bool              // it may send its request; of a listener, guarded by its mu
	offer  int               // unasked, asked or answered, of one who waits for a listener's place; guarded by its mu
}

func (s *socket) peer() rcm.Peer { return rcm.Peer(s.Peer()) }

// policy is a policy in terms of samehost, where nil means the same.
func policy(allow func(rcm.Peer) bool) func(samehost.Peer) bool {
	if allow == nil {
		return nil
	}
	return func(p samehost.Peer) bool { return allow(rcm.Peer(p)) }
}

// dial connects to the first of names where somebody listens whom allow
// trusts. It waits for nobody. The error wraps ErrNoListener, ErrPeerDenied, or
// ErrBusy where the kernel's queue of the listener is full.
func dial(names []string, allow func(rcm.Peer) bool) (*socket, error) {
	return asSocket(samehost.Dial(unix.SOCK_SEQPACKET, policy(allow), names...))
}

// asSocket gives what comes of a dial the form that dial has.
func asSocket(c *samehost.Conn, err error) (*socket, error) {
	var denied *samehost.DeniedError
	var full *samehost.FullError
	switch {
	case err == nil:
		return &socket{Conn: c}, nil
	case errors.Is(err, unix.ECONNREFUSED):
		return nil, rcm.ErrNoListener
	case errors.As(err, &denied):
		return nil, fmt.Errorf("%w: %w", rcm.ErrPeerDenied, err)
	case errors.As(err, &full):
		return nil, fmt.Errorf("%w: %w", rcm.ErrBusy, err)
	case errors.Is(err, unix.EAGAIN):
		return nil, fmt.Errorf("%w: the queue of its socket is full", rcm.ErrBusy)
	}
	return nil, err
}

func (s *socket) send(m *handshake.Message) error {
	_, err := s.Write(m.AppendTo(make([]byte, 0, handshake.MaxMessage)))
	return hangup(err)
}

// Receive waits for one message. The wait ends with a message, the hang-up
// of the peer, close, or interruptible.
func (s *socket) receive() (handshake.Message, error) {
	var buf [handshake.MaxMessage]byte
	n, err := s.Read(buf[:])
	if errors.Is(err, unix.ECONNRESET) {
		// The peer closed without reading all that we sent. The kernel says
		// so before it gives out what the peer sent, which may be a REJ.
		n, err = s.Read(buf[:])
	}
	if errors.Is(err, samehost.ErrTruncated) {
		err = fmt.Errorf("%w: %w", rcm.ErrMalformed, err)
	}
	if err != nil {
		return handshake.Message{}, hangup(err)
	}
	return handshake.Parse(buf[:n])
}

// expect receives one message of the given kind.
func (s *socket) expect(kind handshake.MessageKind) (handshake.Message, error) {
	m, err := s.receive()
	return m, expected(m, err, kind)
}

// expected returns what is wrong with a message, of which the kind should be another.
func expected(m handshake.Message, err error, kind handshake.MessageKind) error {
	switch {
	case err != nil:
		return err
	case m.Kind == handshake.KindReject:
		return &rcm.RejectedError{PrivateData: m.Private, Reason: int(m.Reason)}
	case m.Kind != kind:
		return fmt.Errorf("%w: %v instead of %v", rcm.ErrMalformed, m.Kind, kind)
	}
	return nil
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
		s.SetDeadline(longAgo)
		close(fired)
	})
	err := op()
	if !stop() {
		<-fired // ends with the function above, which does not block
		s.SetDeadline(time.Time{})
	}
	if err != nil && ctx.Err() != nil {
		return handshake.ContextError(ctx)
	}
	return err
}

// waiting reports whether the peer is there and waits for us, without
// waiting for it.
func (s *socket) waiting() bool {
	raw, err := s.SyscallConn()
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
