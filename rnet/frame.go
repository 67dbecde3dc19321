package rnet

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// The frame header, 16 bytes, little endian (docs/protocol.md, section 3):
//
//	0  u32 stream
//	4  u8  kind
//	5  u8  flags
//	6  u16 slots   receives posted for data so far, low 16 bits
//	8  u32 length  payload bytes that follow
//	12 u32 credit  ring bytes released so far, low 32 bits
//
// A message, the unit of one WRITE_WITH_IMM, is one frame or several, each
// starting at a multiple of frameAlign.
const (
	frameHeaderLen = 16
	frameAlign     = 16
)

type frameKind uint8

const (
	frameOpen   frameKind = 1 // opens the stream; payload is its first data
	frameAccept frameKind = 2 // reserved: an opener never waits for an answer
	frameData   frameKind = 3
	frameWindow frameKind = 4 // payload: u64, absolute position up to which the peer may send
	frameFin    frameKind = 5 // no more data follows
	frameReset  frameKind = 6 // the stream is gone, both ways
	framePing   frameKind = 7 // keeps the session alive; the transport acknowledges it
	frameGoAway frameKind = 8 // open no more streams on this session
	frameAddrs  frameKind = 9 // slots that may be used, and their addresses; addr.go

	frameSessionWindow frameKind = 10 // payload: u64, absolute position up to which the peer may send what counts
	frameBlocked       frameKind = 11 // the stream has data for which there is neither session window nor minimum
)

// flagClosed on a FIN says that the sender will not read any more either.
const flagClosed uint8 = 1 << 0

// flagCounted on OPEN or DATA says that the payload counts in the session window.
const flagCounted uint8 = 1 << 0

type frameHeader struct {
	stream uint32
	kind   frameKind
	flags  uint8
	slots  uint16
	length uint32
	credit uint32
}

func (h *frameHeader) put(b *[frameHeaderLen]byte) {
	binary.LittleEndian.PutUint32(b[0:], h.stream)
	b[4] = byte(h.kind)
	b[5] = h.flags
	binary.LittleEndian.PutUint16(b[6:], h.slots)
	binary.LittleEndian.PutUint32(b[8:], h.length)
	binary.LittleEndian.PutUint32(b[12:], h.credit)
}

var errFrame = errors.New("malformed frame")

// parseFrame reads the frame at the head of msg and returns its payload and
// what follows it. msg is memory that the peer may still change: the header
// is read once.
func parseFrame(msg []byte) (h frameHeader, payload, rest []byte, err error) {
	if len(msg) < frameHeaderLen {
		return h, nil, nil, fmt.Errorf("%w: %d bytes left for a header", errFrame, len(msg))
	}
	lo := binary.LittleEndian.Uint64(msg[0:])
	hi := binary.LittleEndian.Uint64(msg[8:])
	h = frameHeader{
		stream: uint32(lo), kind: frameKind(lo >> 32), flags: uint8(lo >> 40), slots: uint16(lo >> 48),
		length: uint32(hi), credit: uint32(hi >> 32),
	}
	body := msg[frameHeaderLen:]
	if uint64(h.length) > uint64(len(body)) {
		return h, nil, nil, fmt.Errorf("%w: kind %d of %d bytes, %d follow", errFrame, h.kind, h.length, len(body))
	}
	payload = body[:h.length:h.length]
	if next := alignFrame(int(h.length)); next < len(body) {
		rest = body[next:]
	}
	return h, payload, rest, nil
}

func alignFrame(n int) int { return (n + frameAlign - 1) &^ (frameAlign - 1) }

// The immediate of a message. A clear top bit says that frames lie in the
// ring, at its start if bit 30 is set; a set one makes it a credit message, which occupies no ring space:
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
