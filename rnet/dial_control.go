package rnet

import (
	"context"
	"fmt"
	"syscall"

	"github.com/seed-b9b531af/ramjet/fallback"
)

// A program that sets Dialer.Control most often wants what a stream has by itself or has
// no use for: keep-alive, TCP_USER_TIMEOUT, TCP_NODELAY, sizes of buffers. Or it wants
// no option at all, but to see the address, and perhaps to forbid it. So the function is
// called for each address with the TCP socket that package net is about to connect, as
// ever, and the options that say where packets go, or as whose, are read before and
// after it. Where one has changed the connection has to be of packets.

// control calls the program's Control. It returns an error if that did, and otherwise
// why the dial must be over TCP, nil if it need not.
func (d *Dialer) control(ctx context.Context, network, address string, c syscall.RawConn) (tcpOnly, err error) {
	if !d.hasControl() {
		return nil, nil
	}
	before := packetOptionsOf(c)
	if d.ControlContext != nil {
		err = d.ControlContext(ctx, network, address, c)
	} else {
		err = d.Control(network, address, c)
	}
	if err != nil {
		return nil, err
	}
	if name := before.changed(packetOptionsOf(c)); name != "" {
		return fallback.Because(fallback.SocketOptions, fmt.Errorf("rnet: the dialer's control function has set %s", name)), nil
	}
	return nil, nil
}

func (d *Dialer) hasControl() bool { return d.Control != nil || d.ControlContext != nil }
