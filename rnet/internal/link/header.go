package link

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Header is what the user says of a frame. The link carries it.
type Header struct {
	Stream uint32
	Kind   uint8
	Flags  uint8
}

// A frame begins with a header of 16 bytes, little endian (docs/protocol.md, section
// 3). What Header has not is the link's:
//
//	0  u32 stream
//	4  u8  kind
//	5  u8  flags
//	6  u16 slots   receives posted for data so far, low 16 bits
//	8  u32 length  payload bytes that follow
//	12 u32 credit  ring bytes released so far, low 32 bits
//
// A message, the unit of one WRITE_WITH_IMM, is one frame or several, each
// starting at a multiple of Align.
const (
	HeaderLen = 16
	Align     = 16
)

// wireHeader is a header as it travels.
type wireHeader struct {
	Header
	slots  uint16
	length uint32
	credit uint32
}

func (h *wireHeader) put(b *[HeaderLen]byte) {
	binary.LittleEndian.PutUint32(b[0:], h.Stream)
	b[4], b[5] = h.Kind, h.Flags
	binary.LittleEndian.PutUint16(b[6:], h.slots)
	binary.LittleEndian.PutUint32(b[8:], h.length)
	binary.LittleEndian.PutUint32(b[12:], h.credit)
}

// ErrProtocol says that the peer has broken the protocol.
var ErrProtocol = errors.New("protocol violation")

// parseFrame reads the frame at the head of msg and returns its payload and
// what follows it. msg is memory that the peer may still change: the header
// is read once.
func parseFrame(msg []byte) (h wireHeader, payload, rest []byte, err error) {
	if len(msg) < HeaderLen {
		return h, nil, nil, fmt.Errorf("%w: malformed frame: %d bytes left for a header", ErrProtocol, len(msg))
	}
	lo := binary.LittleEndian.Uint64(msg[0:])
	hi := binary.LittleEndian.Uint64(msg[8:])
	h = wireHeader{
		Header: Header{Stream: uint32(lo), Kind: uint8(lo >> 32), Flags: uint8(lo >> 40)},
		slots:  uint16(lo >> 48), length: uint32(hi), credit: uint32(hi >> 32),
	}
	body := msg[HeaderLen:]
	if uint64(h.length) > uint64(len(body)) {
		return h, nil, nil, fmt.Errorf("%w: malformed frame: kind %d of %d bytes, %d follow", ErrProtocol, h.Kind, h.length, len(body))
	}
	payload = body[:h.length:h.length]
	if next := align(int(h.length)); next < len(body) {
		rest = body[next:]
	}
	return h, payload, rest, nil
}

func align(n int) int { return (n + Align - 1) &^ (Align - 1) }

// The immediate of a message. A clear top bit says that frames lie in the
// ring, at its start if bit 30 is set; a set one makes it a credit message, which
// occupies no ring space:
//
//	bit 31      1
//	bits 30..16 ring bytes released so far, in units of size/4096, low 15 bits
//	bits 15..0  receives posted for data so far, low 16 bits
const (
	immFrames   uint32 = 0
	immRestart  uint32 = 1 << 30
	immCredit   uint32 = 1 << 31
	creditParts        = 4096
)

func creditImm(released uint64, ringSize uint32, slots uint16) uint32 {
	unit := uint64(ringSize) / creditParts
	return immCredit | uint32(released/unit&0x7fff)<<16 | uint32(slots)
}

// parseCreditImm returns the position and the slot count that imm stands
// for, given the position released so far.
func parseCreditImm(imm uint32, known uint64, ringSize uint32) (released uint64, slots uint16) {
	unit := uint64(ringSize) / creditParts
	base := known / unit
	ahead := (uint64(imm>>16) - base) & 0x7fff
	if ahead >= 0x4000 { // behind what is known: a stale update
		return known, uint16(imm)
	}
	return max(known, (base+ahead)*unit), uint16(imm)
}

// ahead32 returns how far the position with the given low bits lies beyond
// known, 0 if it is a stale one.
func ahead32(low uint32, known uint64) uint64 {
	return uint64(max(0, int32(low-uint32(known))))
}
