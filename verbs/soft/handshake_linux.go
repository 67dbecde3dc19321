package soft

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/seed-b9b531af/ramjet/verbs/samehost"
	"golang.org/x/sys/unix"
)

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
	if err == nil && m.kind == kindWelcome && !welcome {
		m, fds, err = readPacket(conn) // as above
	}
	if err != nil {
		return nil, err
	}
	if m.kind != kindHello || m.hello.from != p.peer || m.hello.to != p.self {
		samehost.CloseReceived(fds...)
		return nil, errMalformed("kind %d is not the hello we wait for", m.kind)
	}
	return p.join(conn, peerOf(conn), m.hello, fds, func() error { return nil })
}

func readWelcome(conn *samehost.Conn) error {
	m, fds, err := readPacket(conn) // ends with the welcome, hang-up, or stop
	samehost.CloseReceived(fds...)
	if err == nil && m.kind != kindWelcome {
		err = errMalformed("kind %d before a welcome", m.kind)
	}
	return err
}

// accept answers a hello.
func (p *pairing) accept(h *heldHello) *socketLink {
	// Our hello goes first: once the QP has its link it may have faults to
	// tell, and the peer waits for a hello.
	l, err := p.join(h.conn, h.peer, h.hello, h.fds, func() error { return p.sayHello(h.conn) })
	if err != nil {
		h.conn.Close() // the peer dials again, if it still wants to
		return nil
	}
	return l
}

// serve lets the QP work over l, and reads l until its end.
func (p *pairing) serve(l *socketLink) {
	p.said.closeFD() // the peer has its own
	p.q.tellIfFailed(l)
	p.q.onNews()
	l.serve()
}

// sayHello sends our segment and our bell.
func (p *pairing) sayHello(conn syscall.Conn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	q := p.q
	h := hello{from: p.self, to: p.peer}
	if q.srq != nil {
		h.flags |= helloSRQ
	}
	q.sendMu.Lock()
	defer q.sendMu.Unlock() // the segment stays the QP's while it is sent
	if q.pairing != p {
		return errOver // after a RESET it would be the next peer's
	}
	bell := -1
	if ch := q.recvCQ.ch; ch != nil {
		if bell, err = ch.bell(q.in); err != nil {
			return err
		}
		defer unix.Close(bell)
	}
	p.said = q.in.seg
	h.geo = q.in.seg.geo
	fd := int(q.in.seg.fd.Load())
	if fd < 0 {
		return errOver
	}
	if bell < 0 {
		return sendPacket(raw, encodeHello(h), fd)
	}
	h.flags |= helloBell
	return sendPacket(raw, encodeHello(h), fd, bell)
}

// join makes the peer's segment the one that the QP writes into; answer is
// called before that has an effect. It disposes of the descriptors.
func (p *pairing) join(conn *samehost.Conn, peer Peer, h hello, fds []int, answer func() error) (*socketLink, error) {
	if len(fds) != h.descriptors() {
		samehost.CloseReceived(fds...)
		return nil, errMalformed("hello with %d descriptors", len(fds))
	}
	bell := -1
	if len(fds) == 2 {
		if err := checkBell(fds[1]); err != nil {
			samehost.CloseReceived(fds...)
			return nil, err
		}
		bell = fds[1]
	}
	mapping, err := p.q.dev.mapPeerSegment(fds[0], h.geo)
	if err != nil {
		samehost.CloseReceived(fds...)
		return nil, err
	}
	closeFDs(fds[0])
	l, err := newSocketLink(p.q, conn, peer)
	if err == nil {
		err = answer()
	}
	if err == nil && p.q.attach(l, p, func(o *outbound) {
		o.open(viewOf(mapping, h.geo), h, bell)
		o.mapping = mapping
		l.seg = p.q.in.seg.retain()
	}) == nil {
		err = errOver
	}
	if err != nil {
		unmap(mapping, ofAPeer)
		closeFDs(bell)
		return nil, err
	}
	p.mu.Lock()
	p.conn = nil // it is the link's now, stop must not close it
	p.mu.Unlock()
	p.stop()
	return l, nil
}

// mapPeerSegment maps what a peer calls its segment.
func (d *device) mapPeerSegment(fd int, geo geometry) ([]byte, error) {
	if err := checkSealed(fd, geo.size()); err != nil {
		return nil, err
	}
	mapping, err := d.mmap(fd, geo.size(), unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return nil, fmt.Errorf("map the peer's segment: %w", err)
	}
	if err := geo.populate(mapping, populateLimit); err != nil {
		unmap(mapping, ofAPeer)
		return nil, fmt.Errorf("map the peer's segment: %w", err)
	}
	return mapping, nil
}
