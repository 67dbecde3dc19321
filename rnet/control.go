package rnet

import (
	"context"
	"fmt"
	"syscall"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/rnet/internal/settings"
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

// A program may set options of a listening socket that say which packets come to it, or that
// are checked on packets: a device, a filter, the least TTL. Streams have no packets, and would
// pass by. So where such an option is set a listener serves TCP alone, unless the program
// demands another transport.

// packetListener calls a ListenConfig's Control, and notes whether that sets such an option.
type packetListener struct {
	lc     *ListenConfig
	option string // the name of what was set
}

func (p *packetListener) control(network, address string, c syscall.RawConn) error {
	if p.lc.Control == nil {
		return nil
	}
	before := packetOptionsOf(c)
	if err := p.lc.Control(network, address, c); err != nil {
		return err
	}
	p.option = before.changed(packetOptionsOf(c))
	return nil
}

// onlyForPackets reports whether a listener with this option is for TCP alone.
func onlyForPackets(option string, set settings.Settings) bool {
	if option == "" || set.Transport != fallback.Auto {
		return false
	}
	set.Log.Debug("rnet: listen over TCP alone", "option", option)
	return true
}

// packetOptionSet returns the name of such an option of a socket that was given, "" if it has
// none, or if that cannot be told.
func packetOptionSet(c syscall.Conn) string {
	raw, err := c.SyscallConn()
	if err != nil {
		return ""
	}
	usual, ok := usualPacketOptions(raw)
	if !ok {
		return ""
	}
	return usual.changedButAddress(packetOptionsOf(raw))
}
