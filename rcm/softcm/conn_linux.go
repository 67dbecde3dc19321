package softcm

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/samehost"
)

// conn is a connected QP. The bootstrap socket is the QP's once both sides are at RTS: over
// it the two are paired, and its hang-up is the end of the connection. A peer in this
// process needs none.
type conn struct {
	qp      *verbs.QP
	driver  pairer
	local   netip.AddrPort
	remote  netip.AddrPort
	peer    rcm.Peer
	private []byte

	handed chan *samehost.Conn // the socket, which the QP takes; closed if there will be none
	ended  ending
}

// pairer is a QP of the software HCA.
type pairer interface {
	PairBy(begins bool, connect func(over <-chan struct{}) (*samehost.Conn, error), ended func(err error))
	IsLocal(verbs.GID) bool
	PeerIsLocal() bool
	Leave()
}

// withTimeout fills in the timeout. The kernel tells of a peer's death, so what is left
// is a peer that waits for a processor, and on a busy machine for long.
func withTimeout(p rcm.ConnParam) rcm.ConnParam {
	const aSecond = 18
	p.Timeout = cmp.Or(p.Timeout, aSecond)
	return p
}

// newConn makes the connection of a QP that is not at RTR yet. establish or abandon must
// follow.
func newConn(qp *verbs.QP, dials bool, local, remote netip.AddrPort) (*conn, error) {
	driver, ok := qp.Driver().(pairer)
	if !ok {
		return nil, fmt.Errorf("%w: the QP's device pairs by itself", verbs.ErrUnsupported)
	}
	c := &conn{qp: qp, driver: driver, local: local, remote: remote, handed: make(chan *samehost.Conn, 1)}
	driver.PairBy(dials, c.hand, c.lost)
	return c, nil
}

// hand gives the QP the socket.
func (c *conn) hand(over <-chan struct{}) (*samehost.Conn, error) {
	select { // ends with establish or abandon, or with the QP's wait for it
	case sock, ok := <-c.handed:
		if ok {
			return sock, nil
		}
	case <-over:
	}
	return nil, net.ErrClosed
}

// establish gives the connection its socket, over which nothing is left to say. private is
// the peer's private data.
func (c *conn) establish(sock *socket, private []byte) {
	c.peer, c.private = sock.peer(), private
	if c.driver.PeerIsLocal() {
		sock.Close()
		return
	}
	c.handed <- sock.Conn
}

// abandon gives up a connection that was not established. It may be called for nil.
func (c *conn) abandon() {
	if c != nil {
		close(c.handed)
		c.ended.end(net.ErrClosed)
	}
}

func (c *conn) PrivateData() []byte           { return c.private }
func (c *conn) LocalAddr() netip.AddrPort     { return c.local }
func (c *conn) RemoteAddr() netip.AddrPort    { return c.remote }
func (c *conn) Peer() rcm.Peer                { return c.peer }
func (c *conn) Disconnected() <-chan struct{} { return c.ended.done() }
func (c *conn) Err() error                    { return c.ended.why() }

func (c *conn) AfterDisconnect(f func()) { c.ended.after(f) }

// lost is called by the QP when the peer has ended the pair.
func (c *conn) lost(err error) {
	switch {
	case err == nil:
		err = rcm.ErrDisconnected
	case err == io.EOF || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET):
		err = errHungUp
	default:
		err = fmt.Errorf("%w: %w", err, syscall.ECONNRESET)
	}
	c.ended.end(fmt.Errorf("rcm: connection with %v: %w", c.remote, err))
}

func (c *conn) Disconnect() error {
	if c.ended.why() == nil {
		// It may fail because the caller closed the QP: then nothing is left to stop.
		_ = c.qp.Fail()
		c.driver.Leave()
	}
	c.ended.end(fmt.Errorf("rcm: connection with %v: %w", c.remote, net.ErrClosed))
	select {
	case sock := <-c.handed: // the QP has not taken it
		sock.Close()
	default:
	}
	return nil
}
