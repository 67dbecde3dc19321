package rcm

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// softConn is a connected QP and the bootstrap socket that tells of its end.
// One goroutine reads the socket until the connection has ended.
type softConn struct {
	sock    *socket
	qp      *verbs.QP
	local   netip.AddrPort
	remote  netip.AddrPort
	private []byte

	once    sync.Once
	err     error         // set before ended is closed, constant afterwards
	ended   chan struct{} // closed when the connection has ended
	watched chan struct{} // closed when the goroutine is gone
}

// onThisHost fills in the timeout. The kernel tells of a peer's death, so what is left
// is a peer that waits for a processor, and on a busy machine for long.
func (p ConnParam) onThisHost() ConnParam {
	const aSecond = 18
	p.Timeout = cmp.Or(p.Timeout, aSecond)
	return p
}

func newSoftConn(sock *socket, qp *verbs.QP, local, remote netip.AddrPort, private []byte) *softConn {
	c := &softConn{
		sock: sock, qp: qp, local: local, remote: remote, private: private,
		ended: make(chan struct{}), watched: make(chan struct{}),
	}
	go c.watch()
	return c
}

func (c *softConn) PrivateData() []byte           { return c.private }
func (c *softConn) LocalAddr() netip.AddrPort     { return c.local }
func (c *softConn) RemoteAddr() netip.AddrPort    { return c.remote }
func (c *softConn) Peer() Peer                    { return c.sock.peer() }
func (c *softConn) Disconnected() <-chan struct{} { return c.ended }

func (c *softConn) Err() error {
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
func (c *softConn) watch() {
	defer close(c.watched)
	m, err := c.sock.receive()
	switch {
	case err == nil && m.kind == kindDisconnect:
		err = ErrDisconnected
	case err == nil:
		err = fmt.Errorf("%w: %v on a connection: %w", ErrMalformed, m.kind, syscall.ECONNRESET)
	case !errors.Is(err, syscall.ECONNRESET):
		err = fmt.Errorf("%w: %w", err, syscall.ECONNRESET)
	}
	c.end(fmt.Errorf("rcm: connection with %v: %w", c.remote, err), nil)
}

// end closes the connection for the reason err, after last, the first time.
func (c *softConn) end(err error, last func()) {
	c.once.Do(func() {
		if last != nil {
			last()
		}
		c.err = err
		c.sock.Close()
		close(c.ended)
	})
}

func (c *softConn) Disconnect() error {
	c.end(fmt.Errorf("rcm: connection with %v: %w", c.remote, net.ErrClosed), func() {
		// Both may fail because the caller closed the QP or the peer is
		// gone: then nothing is left to stop, or nobody to tell.
		_ = c.qp.Fail()
		_ = c.sock.send(&message{kind: kindDisconnect})
	})
	<-c.watched // ends at once: the socket is closed
	return nil
}
