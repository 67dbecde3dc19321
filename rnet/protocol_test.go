package rnet

import "encoding/binary"

// The protocol of a link as peers made by hand speak it (docs/protocol.md, section 3).
const (
	frameHeaderLen = 16
	frameAlign     = 16

	immFrames  = 0
	immRestart = 1 << 30

	maxPayload  = 16 << 10 // of a frame, on the software HCA
	minRingSize = 64 << 10
	keepMin     = 4 << 10 // the least payload that stays in the ring
	slotBits    = 20      // of a stream's id
	maxRingSize = 1 << 30
)

// frame returns the bytes of one frame.
func frame(kind uint8, stream uint32, flags uint8, payload []byte) []byte {
	return withCredit(kind, stream, flags, payload, 0, 0)
}

// withCredit returns a frame whose header claims that so much was released and posted.
func withCredit(kind uint8, stream uint32, flags uint8, payload []byte, credit uint32, slots uint16) []byte {
	b := binary.LittleEndian.AppendUint32(nil, stream)
	b = append(b, kind, flags)
	b = binary.LittleEndian.AppendUint16(b, slots)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(payload)))
	b = binary.LittleEndian.AppendUint32(b, credit)
	return append(b, payload...)
}

// message joins frames as one WRITE_WITH_IMM carries them.
func message(frames ...[]byte) []byte {
	var msg []byte
	for _, f := range frames {
		for len(msg)%frameAlign != 0 {
			msg = append(msg, 0)
		}
		msg = append(msg, f...)
	}
	return msg
}

// creditImm is the immediate of a credit message.
func creditImm(released uint64, ringSize uint32, slots uint16) uint32 {
	return 1<<31 | uint32(released/(uint64(ringSize)/4096)&0x7fff)<<16 | uint32(slots)
}
