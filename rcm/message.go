package rcm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// The messages of the software HCA's connection manager; docs/protocol.md
// has the byte tables. This file turns them into bytes and back and does nothing else.

const (
	messageMagic   = "RJCM"
	messageVersion = 1

	headerSize   = 8
	endpointSize = 24
	addrSize     = 20
	requestSize  = headerSize + endpointSize + 4 + 2*addrSize
	replySize    = headerSize + endpointSize + 4
	rejectSize   = headerSize + 4

	// maxMessage is the longest message there is, a reply.
	maxMessage = replySize + MaxReplyData
)

type messageKind uint8

const (
	kindRequest    messageKind = 1 // REQ, dialer to acceptor
	kindReply      messageKind = 2 // REP, acceptor to dialer
	kindReject     messageKind = 3 // REJ, acceptor to dialer
	kindReady      messageKind = 4 // RTU, dialer to acceptor
	kindDisconnect messageKind = 5 // DREQ, either way
)

// String names the message as the specification does.
func (k messageKind) String() string {
	switch k {
	case kindRequest:
		return "REQ"
	case kindReply:
		return "REP"
	case kindReject:
		return "REJ"
	case kindReady:
		return "RTU"
	case kindDisconnect:
		return "DREQ"
	}
	return fmt.Sprintf("message(%d)", uint8(k))
}

// message is one message; which fields count depends on its kind.
type message struct {
	kind      messageKind
	from      endpoint       // REQ, REP
	resources uint8          // REQ, REP: responder resources of the sender
	depth     uint8          // REQ, REP: initiator depth of the sender
	src, dst  netip.AddrPort // REQ
	reason    uint16         // REJ
	private   []byte         // REQ, REP, REJ
}

// errVersion is a well-formed header of a version that we do not speak.
var errVersion = errors.New("unknown protocol version")

// appendTo appends the encoding of m to b. Private data must be within the
// limits of the kind.
func (m *message) appendTo(b []byte) []byte {
	start := len(b)
	b = append(b, messageMagic...)
	b = append(b, messageVersion, byte(m.kind), 0, 0) // length follows below
	switch m.kind {
	case kindRequest:
		b = m.appendEnd(b)
		b = appendAddr(b, m.src)
		b = appendAddr(b, m.dst)
	case kindReply:
		b = m.appendEnd(b)
	case kindReject:
		b = binary.BigEndian.AppendUint16(b, m.reason)
		b = binary.BigEndian.AppendUint16(b, uint16(len(m.private)))
	}
	b = append(b, m.private...)
	binary.BigEndian.PutUint16(b[start+6:], uint16(len(b)-start))
	return b
}

func (m *message) appendEnd(b []byte) []byte {
	b = append(b, m.from.gid[:]...)
	b = binary.BigEndian.AppendUint32(b, m.from.qpn)
	b = binary.BigEndian.AppendUint32(b, m.from.psn)
	b = append(b, m.resources, m.depth)
	return binary.BigEndian.AppendUint16(b, uint16(len(m.private)))
}

func appendAddr(b []byte, a netip.AddrPort) []byte {
	ip := a.Addr().As16()
	family := byte(6)
	if a.Addr().Is4() {
		family = 4
	}
	b = append(b, ip[:]...)
	b = binary.BigEndian.AppendUint16(b, a.Port())
	return append(b, family, 0)
}

// parseMessage reads the message that packet holds, no more and no less. The
// private data is a copy. The error wraps ErrMalformed or errVersion.
func parseMessage(packet []byte) (message, error) {
	if len(packet) < headerSize || string(packet[:4]) != messageMagic {
		return message{}, fmt.Errorf("%w: no header", ErrMalformed)
	}
	if v := packet[4]; v != messageVersion {
		return message{}, fmt.Errorf("%w %d", errVersion, v)
	}
	m := message{kind: messageKind(packet[5])}
	if n := binary.BigEndian.Uint16(packet[6:]); int(n) != len(packet) {
		return message{}, fmt.Errorf("%w: %v of %d bytes says it has %d", ErrMalformed, m.kind, len(packet), n)
	}
	var err error
	switch m.kind {
	case kindRequest:
		err = m.parseRequest(packet)
	case kindReply:
		err = m.parseReply(packet)
	case kindReject:
		err = m.parseReject(packet)
	case kindReady, kindDisconnect:
		if len(packet) != headerSize {
			err = fmt.Errorf("%d bytes too many", len(packet)-headerSize)
		}
	default:
		err = errors.New("unknown kind")
	}
	if err != nil {
		return message{}, fmt.Errorf("%w: %v: %w", ErrMalformed, m.kind, err)
	}
	return m, nil
}

func (m *message) parseRequest(p []byte) error {
	if len(p) < requestSize {
		return errShort
	}
	if err := m.parseEnd(p[headerSize:], p[requestSize:], MaxRequestData); err != nil {
		return err
	}
	var err error
	if m.src, err = parseAddr(p[requestSize-2*addrSize:]); err != nil {
		return fmt.Errorf("source: %w", err)
	}
	if m.dst, err = parseAddr(p[requestSize-addrSize:]); err != nil {
		return fmt.Errorf("destination: %w", err)
	}
	return nil
}

func (m *message) parseReply(p []byte) error {
	if len(p) < replySize {
		return errShort
	}
	return m.parseEnd(p[headerSize:], p[replySize:], MaxReplyData)
}

func (m *message) parseReject(p []byte) error {
	if len(p) < rejectSize {
		return errShort
	}
	m.reason = binary.BigEndian.Uint16(p[headerSize:])
	return m.parsePrivate(binary.BigEndian.Uint16(p[headerSize+2:]), p[rejectSize:], MaxRejectData)
}

var errShort = errors.New("too short")

// parseEnd reads the endpoint, the read depths and the length of the private
// data from p, which has endpointSize+4 bytes at least, and the data itself.
func (m *message) parseEnd(p, private []byte, maxPrivate int) error {
	m.from.gid = verbs.GID(p[:16])
	m.from.qpn = binary.BigEndian.Uint32(p[16:])
	m.from.psn = binary.BigEndian.Uint32(p[20:])
	if m.from.gid == (verbs.GID{}) {
		return errors.New("no GID")
	}
	if m.from.qpn >= 1<<24 || m.from.psn >= 1<<24 {
		return fmt.Errorf("QP number %#x or packet number %#x has more than 24 bits", m.from.qpn, m.from.psn)
	}
	m.resources, m.depth = p[24], p[25]
	return m.parsePrivate(binary.BigEndian.Uint16(p[26:]), private, maxPrivate)
}

func (m *message) parsePrivate(length uint16, data []byte, limit int) error {
	if int(length) != len(data) || len(data) > limit {
		return fmt.Errorf("%d bytes of private data announced, %d there, %d allowed", length, len(data), limit)
	}
	if length > 0 {
		m.private = append([]byte(nil), data...)
	}
	return nil
}

// parseAddr reads an address from p, which has addrSize bytes at least. IPv4
// must be in its IPv4-mapped form and IPv6 must not, so that an address has
// one encoding.
func parseAddr(p []byte) (netip.AddrPort, error) {
	ip := netip.AddrFrom16([16]byte(p[:16]))
	port, family := binary.BigEndian.Uint16(p[16:]), p[18]
	if p[19] != 0 || port == 0 || family != 4 && family != 6 || ip.Is4In6() != (family == 4) {
		return netip.AddrPort{}, fmt.Errorf("address %v, port %d, family %d", ip, port, family)
	}
	return netip.AddrPortFrom(ip.Unmap(), port), nil
}
