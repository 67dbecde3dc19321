package rnet

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
)

// The hello, 56 bytes, little endian, travels as private data of the
// connection request and of the reply (docs/protocol.md, section 2). Both
// sides go on with the lesser of their versions and limits.
//
//	0  u32 magic "RJT1"
//	4  u8  lowest version spoken   5  u8 highest version spoken
//	6  u16 flags: 1 probes are answered, 2 short messages may come in a SEND
//	   (both of package link), 4 always: the listening side gives out addresses
//	   (addr.go)
//	8  u64 address of the receive ring
//	16 u32 rkey of the receive ring
//	20 u32 size of the receive ring, a power of two
//	24 u32 receives posted for data
//	28 u32 window of a stream, bytes
//	32 u32 streams allowed at once
//	36 u32 process id, for people
//	40 u64 session token, for people
//	48 u32 session window, bytes
//	52 u32 0
const (
	helloLen   = 56
	helloStart = 6 // of it all versions have: magic and versions
	helloMagic = 'R' | 'J'<<8 | 'T'<<16 | '1'<<24

	protocolVersion = 2 // 1 had no session window

	helloProbes = 1 << 0
	helloShort  = 1 << 1
	helloAddrs  = 1 << 2

	minWindow = 4 << 10
	maxWindow = 1 << 28

	minSessionWindow = 64 << 10
	maxSessionWindow = 1 << 30
)

var (
	errHello   = errors.New("malformed hello")
	errVersion = errors.New("no protocol version in common")
)

type hello struct {
	minVersion, maxVersion uint8
	link                   link.Params
	window                 uint32
	streams                uint32
	pid                    uint32
	token                  uint64
	sessionWindow          uint32
}

func (h *hello) marshal() []byte {
	b := make([]byte, helloLen)
	binary.LittleEndian.PutUint32(b[0:], helloMagic)
	b[4], b[5] = h.minVersion, h.maxVersion
	binary.LittleEndian.PutUint16(b[6:], h.flags())
	binary.LittleEndian.PutUint64(b[8:], h.link.RingAddr)
	binary.LittleEndian.PutUint32(b[16:], h.link.RingKey)
	binary.LittleEndian.PutUint32(b[20:], h.link.RingSize)
	binary.LittleEndian.PutUint32(b[24:], h.link.Slots)
	binary.LittleEndian.PutUint32(b[28:], h.window)
	binary.LittleEndian.PutUint32(b[32:], h.streams)
	binary.LittleEndian.PutUint32(b[36:], h.pid)
	binary.LittleEndian.PutUint64(b[40:], h.token)
	binary.LittleEndian.PutUint32(b[48:], h.sessionWindow)
	return b
}

func (h *hello) flags() uint16 {
	flags := uint16(helloAddrs)
	if h.link.Probes {
		flags |= helloProbes
	}
	if h.link.Short {
		flags |= helloShort
	}
	return flags
}

// parseHello reads a peer's hello. Bytes after the 56 are ignored: rdma_cm
// delivers private data padded with zeros.
func parseHello(b []byte) (hello, error) {
	var h hello
	if len(b) < helloStart {
		return h, fmt.Errorf("%w: %d bytes", errHello, len(b))
	}
	if magic := binary.LittleEndian.Uint32(b); magic != helloMagic {
		return h, fmt.Errorf("%w: magic %#x", errHello, magic)
	}
	switch lowest, highest := b[4], b[5]; {
	case lowest > highest:
		return h, fmt.Errorf("%w: versions %d to %d", errHello, lowest, highest)
	case lowest > protocolVersion || highest < protocolVersion:
		return h, fmt.Errorf("%w: the peer speaks %d to %d, we speak %d", errVersion, lowest, highest, protocolVersion)
	case len(b) < helloLen:
		return h, fmt.Errorf("%w: %d bytes", errHello, len(b))
	case binary.LittleEndian.Uint16(b[6:])&helloAddrs == 0:
		return h, fmt.Errorf("%w: from a peer without ADDRS", errHello)
	}
	flags := binary.LittleEndian.Uint16(b[6:])
	h = hello{
		minVersion: b[4], maxVersion: b[5],
		link: link.Params{
			Probes: flags&helloProbes != 0, Short: flags&helloShort != 0,
			RingAddr: binary.LittleEndian.Uint64(b[8:]),
			RingKey:  binary.LittleEndian.Uint32(b[16:]),
			RingSize: binary.LittleEndian.Uint32(b[20:]),
			Slots:    binary.LittleEndian.Uint32(b[24:]),
		},
		window:        binary.LittleEndian.Uint32(b[28:]),
		streams:       binary.LittleEndian.Uint32(b[32:]),
		pid:           binary.LittleEndian.Uint32(b[36:]),
		token:         binary.LittleEndian.Uint64(b[40:]),
		sessionWindow: binary.LittleEndian.Uint32(b[48:]),
	}
	if err := h.link.Check(); err != nil {
		return h, fmt.Errorf("%w: %w", errHello, err)
	}
	switch {
	case h.window < minWindow || h.window > maxWindow:
		return h, fmt.Errorf("%w: window of %d bytes", errHello, h.window)
	case h.sessionWindow < minSessionWindow || h.sessionWindow > maxSessionWindow:
		return h, fmt.Errorf("%w: session window of %d bytes", errHello, h.sessionWindow)
	case h.streams == 0:
		return h, fmt.Errorf("%w: no stream allowed", errHello)
	}
	h.streams = min(h.streams, maxStreams)
	return h, nil
}
