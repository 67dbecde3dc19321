package protocol

import (
	"encoding/binary"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// A message of a datagram QP to a device of another process is one packet of a connection to
// that device's socket, whose first packet was KindDatagrams.
//
//	0 "RJD"  3 version (1)  4 flags  5 SL  6 traffic class  7 hop limit
//	8 GID of the sender (16)  24 its QPN (4)
//	28 GID of the receiver, or of a group (16)  44 its QPN (4)
//	48 Q_Key (4)  52 immediate (4)  56 flow label (4)  60 payload, up to 4096
const (
	DatagramHeaderSize = 60
	MaxDatagram        = 4096 // bytes of payload
	datagramVersion    = 1

	DatagramImm       uint8 = 1 << 0
	DatagramSolicited uint8 = 1 << 1
)

// Datagram is what a message brings beside its payload.
type Datagram struct {
	From, To                          Endpoint
	QKey, Imm, FlowLabel              uint32
	Flags, SL, TrafficClass, HopLimit uint8
}

// Encode writes the header to the beginning of b.
func (h *Datagram) Encode(b []byte) {
	copy(b, "RJD")
	b[3], b[4], b[5], b[6], b[7] = datagramVersion, h.Flags, h.SL, h.TrafficClass, h.HopLimit
	copy(b[8:], h.From.GID[:])
	binary.LittleEndian.PutUint32(b[24:], h.From.QPN)
	copy(b[28:], h.To.GID[:])
	binary.LittleEndian.PutUint32(b[44:], h.To.QPN)
	binary.LittleEndian.PutUint32(b[48:], h.QKey)
	binary.LittleEndian.PutUint32(b[52:], h.Imm)
	binary.LittleEndian.PutUint32(b[56:], h.FlowLabel)
}

// ParseDatagram reads a packet.
func ParseDatagram(b []byte) (Datagram, []byte, error) {
	var h Datagram
	if len(b) < DatagramHeaderSize || len(b) > DatagramHeaderSize+MaxDatagram || string(b[:3]) != "RJD" || b[3] != datagramVersion {
		return h, nil, Malformed("datagram of %d bytes", len(b))
	}
	h.Flags, h.SL, h.TrafficClass, h.HopLimit = b[4], b[5], b[6], b[7]
	h.From = Endpoint{GID: verbs.GID(b[8:24]), QPN: binary.LittleEndian.Uint32(b[24:])}
	h.To = Endpoint{GID: verbs.GID(b[28:44]), QPN: binary.LittleEndian.Uint32(b[44:])}
	h.QKey = binary.LittleEndian.Uint32(b[48:])
	h.Imm = binary.LittleEndian.Uint32(b[52:])
	h.FlowLabel = binary.LittleEndian.Uint32(b[56:])
	if h.Flags&^(DatagramImm|DatagramSolicited) != 0 || h.SL >= 1<<4 || h.FlowLabel >= 1<<20 || h.From.QPN >= 1<<24 || h.To.QPN >= 1<<24 {
		return h, nil, Malformed("datagram from QP %#x to %#x with flags %#x", h.From.QPN, h.To.QPN, h.Flags)
	}
	return h, b[DatagramHeaderSize:], nil
}

// PutGRH writes the GRH of a message of n bytes (InfiniBand Architecture Specification
// 8.3).
func (h *Datagram) PutGRH(b []byte, n int) {
	const nextHeader = 0x1b
	binary.BigEndian.PutUint32(b, 6<<28|uint32(h.TrafficClass)<<20|h.FlowLabel)
	binary.BigEndian.PutUint16(b[4:], uint16(n))
	b[6], b[7] = nextHeader, h.HopLimit
	copy(b[8:], h.From.GID[:])
	copy(b[24:], h.To.GID[:])
}
