package mux

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
//	   (slots.go)
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
	HelloLen   = 56
	helloStart = 6 // of it all versions have: magic and versions
	helloMagic = 'R' | 'J'<<8 | 'T'<<16 | '1'<<24

	protocolVersion = 5 // 1 had no session window, 2 no position in the FIN of a Close, which 3 answered, 4 no length in a FIN

	helloProbes = 1 << 0
	helloShort  = 1 << 1
	helloAddrs  = 1 << 2

	MinWindow = 4 << 10
	MaxWindow = 1 << 28

	MinSessionWindow = 64 << 10
	MaxSessionWindow = 1 << 30
)

// What is wrong with a hello.
var (
	ErrHello   = errors.New("malformed hello")
	ErrVersion = errors.New("no protocol version in common")
)

// Hello is what each side says of itself.
type Hello struct {
	MinVersion, MaxVersion uint8
	Link                   link.Params
	Window                 uint32
	Streams                uint32
	PID                    uint32
	Token                  uint64
	SessionWindow          uint32
}

// Marshal returns the bytes of the hello.
func (h *Hello) Marshal() []byte {
	b := make([]byte, HelloLen)
	binary.LittleEndian.PutUint32(b[0:], helloMagic)
	b[4], b[5] = h.MinVersion, h.MaxVersion
	binary.LittleEndian.PutUint16(b[6:], h.flags())
	binary.LittleEndian.PutUint64(b[8:], h.Link.RingAddr)
	binary.LittleEndian.PutUint32(b[16:], h.Link.RingKey)
	binary.LittleEndian.PutUint32(b[20:], h.Link.RingSize)
	binary.LittleEndian.PutUint32(b[24:], h.Link.Slots)
	binary.LittleEndian.PutUint32(b[28:], h.Window)
	binary.LittleEndian.PutUint32(b[32:], h.Streams)
	binary.LittleEndian.PutUint32(b[36:], h.PID)
	binary.LittleEndian.PutUint64(b[40:], h.Token)
	binary.LittleEndian.PutUint32(b[48:], h.SessionWindow)
	return b
}

func (h *Hello) flags() uint16 {
	flags := uint16(helloAddrs)
	if h.Link.Probes {
		flags |= helloProbes
	}
	if h.Link.Short {
		flags |= helloShort
	}
	return flags
}

// ParseHello reads a peer's hello. Bytes after the 56 are ignored: rdma_cm
// delivers private data padded with zeros.
func ParseHello(b []byte) (Hello, error) {
	var h Hello
	if len(b) < helloStart {
		return h, fmt.Errorf("%w: %d bytes", ErrHello, len(b))
	}
	if magic := binary.LittleEndian.Uint32(b); magic != helloMagic {
		return h, fmt.Errorf("%w: magic %#x", ErrHello, magic)
	}
	switch lowest, highest := b[4], b[5]; {
	case lowest > highest:
		return h, fmt.Errorf("%w: versions %d to %d", ErrHello, lowest, highest)
	case lowest > protocolVersion || highest < protocolVersion:
		return h, fmt.Errorf("%w: the peer speaks %d to %d, we speak %d", ErrVersion, lowest, highest, protocolVersion)
	case len(b) < HelloLen:
		return h, fmt.Errorf("%w: %d bytes", ErrHello, len(b))
	case binary.LittleEndian.Uint16(b[6:])&helloAddrs == 0:
		return h, fmt.Errorf("%w: from a peer without ADDRS", ErrHello)
	}
	flags := binary.LittleEndian.Uint16(b[6:])
	h = Hello{
		MinVersion: b[4], MaxVersion: b[5],
		Link: link.Params{
			Probes: flags&helloProbes != 0, Short: flags&helloShort != 0,
			RingAddr: binary.LittleEndian.Uint64(b[8:]),
			RingKey:  binary.LittleEndian.Uint32(b[16:]),
			RingSize: binary.LittleEndian.Uint32(b[20:]),
			Slots:    binary.LittleEndian.Uint32(b[24:]),
		},
		Window:        binary.LittleEndian.Uint32(b[28:]),
		Streams:       binary.LittleEndian.Uint32(b[32:]),
		PID:           binary.LittleEndian.Uint32(b[36:]),
		Token:         binary.LittleEndian.Uint64(b[40:]),
		SessionWindow: binary.LittleEndian.Uint32(b[48:]),
	}
	if err := h.Link.Check(); err != nil {
		return h, fmt.Errorf("%w: %w", ErrHello, err)
	}
	switch {
	case h.Window < MinWindow || h.Window > MaxWindow:
		return h, fmt.Errorf("%w: window of %d bytes", ErrHello, h.Window)
	case h.SessionWindow < MinSessionWindow || h.SessionWindow > MaxSessionWindow:
		return h, fmt.Errorf("%w: session window of %d bytes", ErrHello, h.SessionWindow)
	case h.Streams == 0:
		return h, fmt.Errorf("%w: no stream allowed", ErrHello)
	}
	h.Streams = min(h.Streams, MaxStreams)
	return h, nil
}
