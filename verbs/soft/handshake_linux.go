package soft

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// greet says hello over a dialed connection and takes the answer.
func (p *pairing) greet(conn *net.UnixConn) (*socketLink, error) {
	peer, err := admit(conn)
	if err != nil {
		return nil, err
	}
	if err := p.sayHello(conn); err != nil {
		return nil, err
	}
	m, fds, err := readPacket(conn) // ends with the hello, hang-up, or stop
	if err != nil {
		return nil, err
	}
	if m.kind != kindHello || m.hello.from != p.peer || m.hello.to != p.self {
		closeFDs(fds...)
		return nil, errMalformed("kind %d is not the hello we wait for", m.kind)
	}
	return p.join(conn, peer, m.hello, fds, func() error { return nil })
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
func (p *pairing) sayHello(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	q := p.q
	h := hello{from: p.self, to: p.peer}
	if q.srq != nil {
		h.flags |= helloSRQ
	}
	bell := -1
	if ch := q.recvCQ.ch; ch != nil {
		if bell, err = ch.bell(); err != nil {
			return err
		}
		defer unix.Close(bell)
	}
	q.sendMu.Lock()
	defer q.sendMu.Unlock() // the segment stays the QP's while it is sent
	if q.pairing != p {
		return errOver // after a RESET it would be the next peer's
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
func (p *pairing) join(conn *net.UnixConn, peer Peer, h hello, fds []int, answer func() error) (*socketLink, error) {
	want := 1
	if h.flags&helloBell != 0 {
		want = 2
	}
	if len(fds) != want {
		closeFDs(fds...)
		return nil, errMalformed("hello with %d descriptors", len(fds))
	}
	mapping, err := p.q.dev.mapPeerSegment(fds[0], h.geo)
	closeFDs(fds[0])
	bell := -1
	if want == 2 {
		bell = fds[1]
		if badBell := checkEventfd(bell); err == nil && badBell != nil {
			unmap(mapping)
			err = badBell
		}
	}
	if err != nil {
		closeFDs(bell)
		return nil, err
	}
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
		unmap(mapping)
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
	if err := geo.populate(mapping); err != nil {
		unmap(mapping)
		return nil, fmt.Errorf("map the peer's segment: %w", err)
	}
	return mapping, nil
}
