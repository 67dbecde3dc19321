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
// has: the peer does not say what its own is.

// nudges are when it does, after the handshake. An acceptor that is held up
// for longer than the last gets it with the next message of the dialer.
var nudges = []time.Duration{10 * time.Millisecond, 100 * time.Millisecond, time.Second}

// nudger is what the QPs of iWARP devices offer. A QP that has failed takes no
// nudge, nor does one with requests under way: the peer gets enough to look at.
type nudger interface{ Nudge() }

// startNudging nudges the acceptor of a connection that we dialed, as long as
// the connection lives.
func (c *conn) startNudging() {
	qp, ok := c.qp.Driver().(nudger)
	if !ok || c.qp.PD().Context().Attr().Transport != verbs.TransportIWARP {
		return
	}
	for _, delay := range nudges {
		time.AfterFunc(delay, func() {
			c.nudging.Lock()
			defer c.nudging.Unlock()
			if c.Err() == nil {
				qp.Nudge()
			}
		})
	}
}
