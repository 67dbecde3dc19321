package kernelcm

import (
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// An acceptor's siw answers the dialer with MPA's reply before it lets the QP
// have the socket (siw_accept, drivers/infiniband/sw/siw/siw_cm.c, kernels 6.1
// to 6.12). What the dialer sends meanwhile lies in the socket until more
// arrives: with two busy CPUs one connection in some hundred never got its
// first message. So the dialer sends a little more, over whichever device it
// has: the peer does not say what its own is. It is an empty WRITE, the message
// that RFC 6581 has a dialer send when it is ready to receive.

// emptyWriteDelays are when it does, after the handshake. An acceptor that is held up
// for longer than the last gets it with the next message of the dialer.
var emptyWriteDelays = []time.Duration{10 * time.Millisecond, 100 * time.Millisecond, time.Second}

// emptyWriter is what the QPs of iWARP devices offer. A QP that has failed posts
// none, nor does one with requests under way: the peer gets enough to look at.
type emptyWriter interface{ PostEmptyWrite() }

// postEmptyWrites sends them to the acceptor of a connection that we dialed, as long as
// the connection lives.
func (c *conn) postEmptyWrites() {
	qp, ok := c.qp.Driver().(emptyWriter)
	if !ok || c.qp.PD().Context().Attr().Transport != verbs.TransportIWARP {
		return
	}
	for _, delay := range emptyWriteDelays {
		time.AfterFunc(delay, func() {
			c.posting.Lock()
			defer c.posting.Unlock()
			if c.Err() == nil {
				qp.PostEmptyWrite()
			}
		})
	}
}
