package kernelcm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/verbs"
)

// lingerTimeout is how long the kernel may repeat our DREQ for a peer that
// does not answer it, once a connection has ended here.
const lingerTimeout = 10 * time.Second

// conn is a connected QP and its id. It has no goroutine: what ends it
// comes from the reader of events, and is done on a goroutine of the moment.
type conn struct {
	id      *cmID
	qp      *verbs.QP
	local   netip.AddrPort
	remote  netip.AddrPort
	private []byte

	once   sync.Once
	linger *time.Timer     // destroys the id if the peer does not answer our DREQ; set within once
	ended  context.Context // done when the connection has ended
	cancel context.CancelCauseFunc

	posting sync.Mutex // held while an empty WRITE is posted
}

func newConn(id *cmID, qp *verbs.QP, local, remote netip.AddrPort, private []byte) *conn {
	c := &conn{id: id, qp: qp, local: local, remote: remote, private: private}
	c.ended, c.cancel = context.WithCancelCause(context.Background())
	id.handle(c.event)
	return c
}

func (c *conn) PrivateData() []byte           { return c.private }
func (c *conn) LocalAddr() netip.AddrPort     { return c.local }
func (c *conn) RemoteAddr() netip.AddrPort    { return c.remote }
func (c *conn) Peer() rcm.Peer                { return rcm.Peer{} }
func (c *conn) Disconnected() <-chan struct{} { return c.ended.Done() }
func (c *conn) Err() error                    { return context.Cause(c.ended) }

func (c *conn) AfterDisconnect(f func()) { context.AfterFunc(c.ended, f) }

// event is called by the reader of events. ADDR_CHANGE (a bond has failed
// over) and UNREACHABLE (a neighbor has another hardware address) are no end
// of a connection: if the QP does not get through any more, it says so.
func (c *conn) event(ev cmEvent) {
	switch ev.kind {
	// An acceptor that goes before its kernel has our RTU rejects what it had
	// accepted.
	case eventDisconnected, eventRejected:
		go c.finish(rcm.ErrDisconnected)
	case eventDeviceRemoval:
		go c.finish(fmt.Errorf("%w: %w", rcm.ErrDeviceRemoved, syscall.ECONNRESET))
	case eventLost:
		go c.finish(fmt.Errorf("%w: %w", ev.lost, syscall.ECONNRESET))
	}
}

// finish ends the connection from outside, unless it has ended, and frees its
// id.
func (c *conn) finish(err error) {
	c.end(err)
	if c.linger != nil {
		c.linger.Stop()
	}
	c.id.destroy()
}

func (c *conn) end(err error) {
	c.once.Do(func() {
		c.stop()
		// After Disconnect the caller closes the QP: an empty WRITE that is under
		// way comes to its end here, and there is no other.
		c.posting.Lock()
		c.cancel(fmt.Errorf("rcm: connection with %v: %w", c.remote, err))
		c.posting.Unlock()
		if errors.Is(err, net.ErrClosed) {
			// The peer's DREP comes as DISCONNECTED, and ends it sooner.
			c.linger = time.AfterFunc(lingerTimeout, c.id.destroy)
		}
	})
}

// stop moves the QP to ERR and sends a DREQ, or the DREP if the peer was
// first. Both may fail because the caller closed the QP or the device is gone:
// then nothing is left to stop, or nobody to tell.
func (c *conn) stop() {
	if c.qp.PD().Context().Attr().Transport == verbs.TransportIWARP {
		// TCP closes in good order only before the QP is in ERR.
		_ = c.id.disconnect()
		_ = c.qp.Fail()
		return
	}
	_ = c.qp.Fail()
	_ = c.id.disconnect()
}

func (c *conn) Disconnect() error {
	c.end(net.ErrClosed)
	return nil
}
