package soft

import (
	"errors"
	"syscall"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs/samehost"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/protocol"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/sys"
	"golang.org/x/sys/unix"
)

// Two QPs of different processes shake hands: each says hello, with the descriptors of its
// segment and of a wake-up socket, and maps what the other sends. The one that dialed
// begins. The messages are in internal/protocol.

// greet says hello over a dialed connection and takes the answer.
func (p *pairing) greet(conn *samehost.Conn) (*socketLink, error) {
	conn.TakeDescriptors()
	welcome := false
	err := p.sayHello(conn)
	if errors.Is(err, unix.EPERM) { // the peer takes no descriptors until it knows who we are
		if err = readWelcome(conn); err == nil {
			welcome = true
			err = p.sayHello(conn)
		}
	}
	if err != nil {
		return nil, err
	}
	m, fds, err := readPacket(conn) // ends with a hello, hang-up, or stop
	if err == nil && m.Kind == protocol.KindWelcome && !welcome {
		m, fds, err = readPacket(conn) // as above
	}
	if err != nil {
		return nil, err
	}
	if m.Kind != protocol.KindHello || m.Hello.From != p.peer || m.Hello.To != p.self {
		samehost.CloseReceived(fds...)
		return nil, protocol.Malformed("kind %d is not the hello we wait for", m.Kind)
	}
	return p.join(conn, peerOf(conn), m.Hello, fds, func() error { return nil })
}

func readWelcome(conn *samehost.Conn) error {
	m, fds, err := readPacket(conn) // ends with the welcome, hang-up, or stop
	samehost.CloseReceived(fds...)
	if err == nil && m.Kind != protocol.KindWelcome {
		err = protocol.Malformed("kind %d before a welcome", m.Kind)
	}
	return err
}

// accept answers a hello that came to the device.
func (p *pairing) accept(h *heldHello) *socketLink {
	l, err := p.joinAndAnswer(h)
	if err != nil {
		h.conn.Close() // the peer dials again, if it still wants to
		return nil
	}
	return l
}

// answer takes the peer's hello over the connection of the connection manager, and answers
// it. The peer is in no hurry: it lives as long as the connection does.
func (p *pairing) answer(conn *samehost.Conn) (*socketLink, error) {
	if err := welcome(conn); err != nil {
		return nil, err
	}
	h, err := takeHello(conn) // ends with a packet, hang-up, or stop
	if err != nil {
		return nil, err
	}
	if h.hello.From != p.peer || h.hello.To != p.self {
		samehost.CloseReceived(h.fds...)
		return nil, protocol.Malformed("hello of another QP, or for another")
	}
	return p.joinAndAnswer(h)
}

func (p *pairing) joinAndAnswer(h *heldHello) (*socketLink, error) {
	// Our hello goes first: once the QP has its link it may have faults to
	// tell, and the peer waits for a hello.
	return p.join(h.conn, h.peer, h.hello, h.fds, func() error { return p.sayHello(h.conn) })
}

// welcome lets a peer that was admitted send descriptors, and tells it so: where the
// kernel has kept them off until now, its hello may have failed.
func welcome(conn *samehost.Conn) error {
	if !conn.TakeDescriptors() {
		return nil
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	return sendPacket(raw, protocol.EncodeBare(protocol.KindWelcome))
}

// readHello returns nil without an error if datagrams follow instead.
func readHello(conn *samehost.Conn) (*heldHello, error) {
	if err := welcome(conn); err != nil {
		return nil, err
	}
	if err := conn.SetReadDeadline(time.Now().Add(helloTimeout)); err != nil {
		return nil, err
	}
	h, err := takeHello(conn)
	if err == errDatagrams {
		return nil, conn.SetReadDeadline(time.Time{})
	}
	if err != nil {
		return nil, err
	}
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		samehost.CloseReceived(h.fds...)
		return nil, err
	}
	return h, nil
}

// errDatagrams says that datagrams follow in the place of a hello.
var errDatagrams = errors.New("datagrams instead of a hello")

// takeHello reads one packet, which is to be a hello.
func takeHello(conn *samehost.Conn) (*heldHello, error) {
	m, fds, err := readPacket(conn) // ends with a packet, hang-up, the deadline, or Close
	if err != nil {
		return nil, err
	}
	if m.Kind == protocol.KindDatagrams && len(fds) == 0 {
		return nil, errDatagrams
	}
	if m.Kind != protocol.KindHello {
		samehost.CloseReceived(fds...)
		return nil, protocol.Malformed("kind %d before hello", m.Kind)
	}
	if len(fds) != m.Hello.Descriptors() { // it may be held, and must not hold more
		samehost.CloseReceived(fds...)
		return nil, protocol.Malformed("hello with %d descriptors", len(fds))
	}
	return &heldHello{conn: conn, peer: peerOf(conn), hello: m.Hello, fds: fds}, nil
}

// helloFlags are what a hello says of the QP.
func (q *qp) helloFlags() (flags uint32) {
	if q.srq != nil {
		flags |= protocol.HelloSRQ
	}
	if q.uc {
		flags |= protocol.HelloUC
	}
	if q.atPoll {
		flags |= protocol.HelloPlaceAtPoll
	}
	return flags
}

// sayHello sends our segment and a wake-up socket.
func (p *pairing) sayHello(conn syscall.Conn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	q := p.q
	h := protocol.Hello{From: p.self, To: p.peer, Flags: q.helloFlags()}
	q.sendMu.Lock()
	defer q.sendMu.Unlock() // the segment stays the QP's while it is sent
	if q.pairing != p {
		return errOver // after a RESET it would be the next peer's
	}
	wakeFD := -1
	if ch := q.recvCQ.ch; ch != nil {
		if wakeFD, err = ch.wakeSocket(q.in); err != nil {
			return err
		}
		defer unix.Close(wakeFD)
	}
	p.said = q.in
	h.Geometry = q.in.seg.geo
	fd := int(q.in.seg.fd.Load())
	if fd < 0 {
		return errOver
	}
	if wakeFD < 0 {
		return sendPacket(raw, protocol.EncodeHello(h), fd)
	}
	h.Flags |= protocol.HelloWakeSocket
	return sendPacket(raw, protocol.EncodeHello(h), fd, wakeFD)
}

// join makes the peer's segment the one that the QP writes into; answer is
// called before that has an effect. It disposes of the descriptors.
func (p *pairing) join(conn *samehost.Conn, peer Peer, h protocol.Hello, fds []int, answer func() error) (*socketLink, error) {
	if uc := h.Flags&protocol.HelloUC != 0; uc != p.q.uc {
		samehost.CloseReceived(fds...)
		return nil, protocol.Malformed("hello of another service")
	}
	if len(fds) != h.Descriptors() {
		samehost.CloseReceived(fds...)
		return nil, protocol.Malformed("hello with %d descriptors", len(fds))
	}
	wakeFD := -1
	if len(fds) == 2 {
		if err := sys.CheckWakeSocket(fds[1]); err != nil {
			samehost.CloseReceived(fds...)
			return nil, err
		}
		wakeFD = fds[1]
	}
	mapping, err := p.q.dev.mapPeerSegment(fds[0], h.Geometry)
	if err != nil {
		samehost.CloseReceived(fds...)
		return nil, err
	}
	sys.CloseFDs(fds[0])
	l, err := newSocketLink(p.q, conn, peer)
	if err == nil {
		l.by = p.by
		err = answer()
	}
	if err == nil && !p.attach(l, func(o *outbound) {
		o.open(protocol.ViewOf(mapping, h.Geometry), h, wakeFD)
		o.mapping = mapping
		l.in, l.seg = p.q.in, p.q.in.seg.retain()
	}) {
		err = errOver
	}
	if err != nil {
		sys.Unmap(mapping, sys.OfAPeer)
		samehost.CloseReceived(wakeFD)
		return nil, err
	}
	p.mu.Lock()
	if p.conn == conn {
		p.conn = nil // it is the link's now, stop must not close it
	}
	p.mu.Unlock()
	p.stop()
	return l, nil
}
