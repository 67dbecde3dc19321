package rnet

import (
	"syscall"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/rnet/internal/settings"
)

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

// only reports whether the listener is for TCP alone.
func (p *packetListener) only(set settings.Settings) bool {
	return onlyForPackets(p.option, set)
}

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
