package softcm

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/handshake"
	"github.com/seed-b9b531af/ramjet/verbs"
)

// conn is a connected QP and the bootstrap socket that tells of its end.
// One goroutine reads the socket until the connection has ended.
type conn struct {
	sock    *socket
	qp      *verbs.QP
	local   netip.AddrPort
	remote  netip.AddrPort
	private []byte
	pair    *awaited // of a peer that came by a directory

	once    sync.Once
	err     error         // set before ended is closed, constant afterwards
	ended   chan struct{} // closed when the connection has ended
	watched chan struct{} // closed when the goroutine is gone
}

// withTimeout fills in the timeout. The kernel tells of a peer's death, so what is left
// is a peer that waits for a processor, and on a busy machine for long.
func withTimeout(p rcm.ConnParam) rcm.ConnParam {
	const aSecond = 18
	p.Timeout = cmp.Or(p.Timeout, aSecond)
	return p
}

func newConn(sock *socket, qp *verbs.QP, local, remote netip.AddrPort, private []byte, pair *awaited) *conn {
	c := &conn{
		sock: sock, qp: qp, local: local, remote: remote, private: private, pair: pair,
		ended: make(chan struct{}), watched: make(chan struct{}),
	}
	go c.watch()
	return c
}

func (c *conn) PrivateData() []byte           { return c.private }
func (c *conn) LocalAddr() netip.AddrPort     { return c.local }
func (c *conn) RemoteAddr() netip.AddrPort    { return c.remote }
func (c *conn) Peer() rcm.Peer                { return c.sock.peer() }
func (c *conn) Disconnected() <-chan struct{} { return c.ended }

func (c *conn) Err() error {
	select {
	case <-c.ended:
		return c.err
	default:
		return nil
	}
}

// watch waits for the one message that a connected peer may send. The wait
// ends with it, with the peer's hang-up, or with Disconnect closing the
// socket.
func (c *conn) watch() {
	defer close(c.watched)
	m, err := c.sock.receive()
	switch {
	case err == nil && m.Kind == handshake.KindDisconnect:
		err = rcm.ErrDisconnected
	case err == nil:
		err = fmt.Errorf("%w: %v on a connection: %w", rcm.ErrMalformed, m.Kind, syscall.ECONNRESET)
	case !errors.Is(err, syscall.ECONNRESET):
		err = fmt.Errorf("%w: %w", err, syscall.ECONNRESET)
	}
	c.end(fmt.Errorf("rcm: connection with %v: %w", c.remote, err), nil)
}

// end closes the connection for the reason err, after last, the first time.
func (c *conn) end(err error, last func()) {
	c.once.Do(func() {
		if last != nil {
			last()
		}
		c.err = err
		c.pair.forget()
		c.sock.Close()
		close(c.ended)
	})
}

func (c *conn) Disconnect() error {
	c.end(fmt.Errorf("rcm: connection with %v: %w", c.remote, net.ErrClosed), func() {
		// Both may fail because the caller closed the QP or the peer is
		// gone: then nothing is left to stop, or nobody to tell.
		_ = c.qp.Fail()
		_ = c.sock.send(&handshake.Message{Kind: handshake.KindDisconnect})
	})
	<-c.watched // ends at once: the socket is closed
	return nil
}
