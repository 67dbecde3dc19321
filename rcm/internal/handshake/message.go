package handshake

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/verbs"
)

// The messages of the software HCA's connection manager; docs/protocol.md
// has the byte tables. This file turns them into bytes and back and does nothing else.

const (
	messageMagic   = "RJCM"
	messageVersion = 2

	headerSize   = 8
	endpointSize = 24
	addrSize     = 20
	requestSize  = headerSize + endpointSize + 4 + 2*addrSize
	replySize    = headerSize + endpointSize + 4
	awaitSize    = headerSize + addrSize + 4
	rejectSize   = headerSize + 4
	lookupSize   = headerSize + 2*addrSize + 4
	foundSize    = headerSize + 20 + 4
	keyPart      = 32 // a nonce or an HMAC-SHA256; KEY has up to two

	// MaxMessage is the longest message there is, a reply.
	MaxMessage = replySize + rcm.MaxReplyData
)

// MessageKind says what a message is, by the numbers of the protocol.
type MessageKind uint8

const (
	KindRequest MessageKind = 1  // REQ, dialer to acceptor
	KindReply   MessageKind = 2  // REP, acceptor to dialer
	KindReject  MessageKind = 3  // REJ, acceptor to dialer
	KindReady   MessageKind = 4  // RTU, dialer to acceptor
	KindKey     MessageKind = 5  // KEY, either way, before others
	KindShow    MessageKind = 6  // SHOW, acceptor to dialer, before REQ
	KindAwait   MessageKind = 7  // AWAIT, to an acceptor from who wants its place
	KindHand    MessageKind = 8  // HAND, the answer, with the acceptor's sockets
	KindOffer   MessageKind = 9  // OFFER, from an acceptor that is about to say HAND
	KindTake    MessageKind = 10 // TAKE, the answer to that
	KindLookup  MessageKind = 11 // LOOKUP, dialer to acceptor, for datagrams
	KindFound   MessageKind = 12 // FOUND, the answer
)

// String names the message as the specification does.
func (k MessageKind) String() string {
	switch k {
	case KindRequest:
		return "REQ"
	case KindReply:
		return "REP"
	case KindReject:
		return "REJ"
	case KindReady:
		return "RTU"
	case KindKey:
		return "KEY"
	case KindShow:
		return "SHOW"
	case KindAwait:
		return "AWAIT"
	case KindHand:
		return "HAND"
	case KindOffer:
		return "OFFER"
	case KindTake:
		return "TAKE"
	case KindLookup:
		return "LOOKUP"
	case KindFound:
		return "FOUND"
	}
	return fmt.Sprintf("message(%d)", uint8(k))
}

// Message is one Message; which fields count depends on its kind.
type Message struct {
	Kind      MessageKind
	From      Endpoint       // REQ, REP; FOUND, without a packet number
	Resources uint8          // REQ, REP: responder resources of the sender
	Depth     uint8          // REQ, REP: initiator depth of the sender
	Src       netip.AddrPort // REQ, LOOKUP
	Dst       netip.AddrPort // REQ, AWAIT, LOOKUP
	V6Only    bool           // AWAIT
	Reason    uint16         // REJ
	Private   []byte         // REQ, REP, REJ, KEY, LOOKUP, FOUND
}

// Endpoint is where a QP is and with which packet it begins.
type Endpoint struct {
	GID verbs.GID
	QPN uint32 // 24 bits
	PSN uint32 // 24 bits
}

// ErrVersion is a well-formed header of a version that we do not speak.
var ErrVersion = errors.New("unknown protocol version")

// AppendTo appends the encoding of m to b. Private data must be within the
// limits of the kind.
func (m *Message) AppendTo(b []byte) []byte {
	start := len(b)
	b = append(b, messageMagic...)
	b = append(b, messageVersion, byte(m.Kind), 0, 0) // length follows below
	switch m.Kind {
	case KindRequest:
		b = m.appendEnd(b)
		b = appendAddr(b, m.Src)
		b = appendAddr(b, m.Dst)
	case KindReply:
		b = m.appendEnd(b)
	case KindAwait:
		b = appendAddr(b, m.Dst)
		b = append(b, 0, 0, 0, 0)
		if m.V6Only {
			b[len(b)-4] = 1
		}
	case KindLookup:
		b = appendAddr(b, m.Src)
		b = appendAddr(b, m.Dst)
		b = binary.BigEndian.AppendUint32(b, uint32(len(m.Private)))
	case KindFound:
		b = append(b, m.From.GID[:]...)
		b = binary.BigEndian.AppendUint32(b, m.From.QPN)
		b = binary.BigEndian.AppendUint32(b, uint32(len(m.Private)))
	case KindReject:
		b = binary.BigEndian.AppendUint16(b, m.Reason)
		b = binary.BigEndian.AppendUint16(b, uint16(len(m.Private)))
	}
	b = append(b, m.Private...)
	binary.BigEndian.PutUint16(b[start+6:], uint16(len(b)-start))
	return b
}

func (m *Message) appendEnd(b []byte) []byte {
	b = append(b, m.From.GID[:]...)
	b = binary.BigEndian.AppendUint32(b, m.From.QPN)
	b = binary.BigEndian.AppendUint32(b, m.From.PSN)
	b = append(b, m.Resources, m.Depth)
	return binary.BigEndian.AppendUint16(b, uint16(len(m.Private)))
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

// Parse reads the message that packet holds, no more and no less. The
// private data is a copy. The error wraps ErrMalformed or ErrVersion.
func Parse(packet []byte) (Message, error) {
	if len(packet) < headerSize || string(packet[:4]) != messageMagic {
		return Message{}, fmt.Errorf("%w: no header", rcm.ErrMalformed)
	}
	if v := packet[4]; v != messageVersion {
		return Message{}, fmt.Errorf("%w %d", ErrVersion, v)
	}
	m := Message{Kind: MessageKind(packet[5])}
	if n := binary.BigEndian.Uint16(packet[6:]); int(n) != len(packet) {
		return Message{}, fmt.Errorf("%w: %v of %d bytes says it has %d", rcm.ErrMalformed, m.Kind, len(packet), n)
	}
	var err error
	switch m.Kind {
	case KindRequest:
		err = m.parseRequest(packet)
	case KindReply:
		err = m.parseReply(packet)
	case KindReject:
		err = m.parseReject(packet)
	case KindKey:
		err = m.parseKey(packet[headerSize:])
	case KindAwait:
		err = m.parseAwait(packet)
	case KindLookup:
		err = m.parseLookup(packet)
	case KindFound:
		err = m.parseFound(packet)
	case KindReady, KindShow, KindHand, KindOffer, KindTake:
		if len(packet) != headerSize {
			err = fmt.Errorf("%d bytes too many", len(packet)-headerSize)
		}
	default:
		err = errors.New("unknown kind")
	}
	if err != nil {
		return Message{}, fmt.Errorf("%w: %v: %w", rcm.ErrMalformed, m.Kind, err)
	}
	return m, nil
}

func (m *Message) parseRequest(p []byte) error {
	if len(p) < requestSize {
		return errShort
	}
	if err := m.parseEnd(p[headerSize:], p[requestSize:], rcm.MaxRequestData); err != nil {
		return err
	}
	return m.parseAddrs(p[requestSize-2*addrSize:])
}

// parseAddrs reads the addresses of both sides.
func (m *Message) parseAddrs(p []byte) (err error) {
	if m.Src, err = parseAddr(p); err != nil {
		return fmt.Errorf("source: %w", err)
	}
	if m.Dst, err = parseAddr(p[addrSize:]); err != nil {
		return fmt.Errorf("destination: %w", err)
	}
	return nil
}

func (m *Message) parseLookup(p []byte) error {
	if len(p) < lookupSize {
		return errShort
	}
	if err := m.parseAddrs(p[headerSize:]); err != nil {
		return err
	}
	return m.parsePrivate(binary.BigEndian.Uint32(p[lookupSize-4:]), p[lookupSize:], rcm.MaxLookupData)
}

func (m *Message) parseFound(p []byte) error {
	if len(p) < foundSize {
		return errShort
	}
	var err error
	if m.From, err = parseQP(p[headerSize:]); err != nil {
		return err
	}
	if m.From.GID.IsMulticast() || m.From.QPN == 1<<24-1 {
		return fmt.Errorf("QP %#x of %v is a group", m.From.QPN, m.From.GID)
	}
	return m.parsePrivate(binary.BigEndian.Uint32(p[foundSize-4:]), p[foundSize:], rcm.MaxLookupReplyData)
}

func (m *Message) parseReply(p []byte) error {
	if len(p) < replySize {
		return errShort
	}
	return m.parseEnd(p[headerSize:], p[replySize:], rcm.MaxReplyData)
}

func (m *Message) parseReject(p []byte) error {
	if len(p) < rejectSize {
		return errShort
	}
	m.Reason = binary.BigEndian.Uint16(p[headerSize:])
	return m.parsePrivate(uint32(binary.BigEndian.Uint16(p[headerSize+2:])), p[rejectSize:], rcm.MaxRejectData)
}

func (m *Message) parseKey(p []byte) error {
	if len(p) > 2*keyPart || len(p)%keyPart != 0 {
		return fmt.Errorf("%d bytes, want 0, %d or %d", len(p), keyPart, 2*keyPart)
	}
	return m.parsePrivate(uint32(len(p)), p, len(p))
}

func (m *Message) parseAwait(p []byte) error {
	if len(p) != awaitSize {
		return fmt.Errorf("%d bytes, want %d", len(p), awaitSize)
	}
	flags := binary.BigEndian.Uint32(p[headerSize+addrSize:])
	if flags&^(1<<24) != 0 {
		return fmt.Errorf("flags %#08x", flags)
	}
	m.V6Only = flags != 0
	var err error
	m.Dst, err = parseAddr(p[headerSize:])
	return err
}

// parseQP reads an endpoint without a packet number.
func parseQP(p []byte) (Endpoint, error) {
	e := Endpoint{GID: verbs.GID(p[:16]), QPN: binary.BigEndian.Uint32(p[16:])}
	if e.GID == (verbs.GID{}) {
		return e, errors.New("no GID")
	}
	if e.QPN >= 1<<24 {
		return e, fmt.Errorf("QP number %#x has more than 24 bits", e.QPN)
	}
	return e, nil
}

var errShort = errors.New("too short")

// parseEnd reads the endpoint, the read depths and the length of the private
// data from p, which has endpointSize+4 bytes at least, and the data itself.
func (m *Message) parseEnd(p, private []byte, maxPrivate int) error {
	var err error
	if m.From, err = parseQP(p); err != nil {
		return err
	}
	if m.From.PSN = binary.BigEndian.Uint32(p[20:]); m.From.PSN >= 1<<24 {
		return fmt.Errorf("packet number %#x has more than 24 bits", m.From.PSN)
	}
	m.Resources, m.Depth = p[24], p[25]
	return m.parsePrivate(uint32(binary.BigEndian.Uint16(p[26:])), private, maxPrivate)
}

func (m *Message) parsePrivate(length uint32, data []byte, limit int) error {
	if uint64(length) != uint64(len(data)) || len(data) > limit {
		return fmt.Errorf("%d bytes of private data announced, %d there, %d allowed", length, len(data), limit)
	}
	if length > 0 {
		m.Private = append([]byte(nil), data...)
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

// A user of rdma_cm can reject for one reason only, 28, "consumer defined".
// What a listener of ours refuses for a reason of its own it says in the
// private data of the reject, as the REJ message of the software HCA's
// protocol; docs/protocol.md describes it. Peers of other make see reason 28.

// Refusal is the private data of a refusal.
func Refusal(reason uint16) []byte {
	return (&Message{Kind: KindReject, Reason: reason}).AppendTo(nil)
}

// RefusalReason returns the reason that the private data of a reject holds, with
// or without padding, or ReasonConsumer.
func RefusalReason(private []byte) int {
	if len(private) >= rejectSize {
		m, err := Parse(private[:rejectSize])
		if err == nil && m.Kind == KindReject {
			return int(m.Reason)
		}
	}
	return rcm.ReasonConsumer
}
