package protocol

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// What two paired QPs of different processes say to each other over their
// Unix socket (SOCK_SEQPACKET: one message is one packet). Integers are
// little endian.
//
//	all      0 "RJS"  3 version (6)  4 kind  5 zero  6 length of the body (2)
//	hello    8 GID of the sender (16)  24 its QPN (4)  28 GID of the receiver (16)  44 its QPN (4)
//	         48 receives (4)  52 bytes of the SEND buffer (4)  56 flags (4)
//	         descriptors: segment, and a wake-up socket if flags has HelloWakeSocket
//	key-request, key-gone
//	         8 key (4)
//	key-answer
//	         8 key (4)  12 good (4)  16 access (4)  20 place among the keys (4)
//	         24 address (8)  32 length (8)  40 offset in the descriptor (8)
//	         descriptor: the region, if good
//	fault    8 what (4)  12 zero (4)
//	notify, drain, welcome, datagrams, leave
//	         (no body)
//
// The side that dialed sends its hello first, and gets a hello back; after that each side sends
// what it has. Since Linux 6.16 the kernel refuses descriptors until the dialer is admitted. There
// the other side sends a welcome before its hello. A hello that fails with EPERM is sent again
// after the welcome.
const (
	KindHello byte = 1 + iota
	KindKeyRequest
	KindKeyAnswer
	KindKeyGone
	KindFault
	KindNotify    // something has changed in my segment
	KindDrain     // take what is in your segment, I wait for room
	KindWelcome   // I take descriptors from you
	KindDatagrams // instead of a hello: datagrams follow
	KindLeave     // my QP has failed in good order, and I hang up
)

const (
	wireVersion = 6
	wireHeader  = 8
	MaxMessage  = 128 // longer than any message of this version
)

var bodyLength = [...]int{
	KindHello: 52, KindKeyRequest: 4, KindKeyAnswer: 40, KindKeyGone: 4, KindFault: 8, KindNotify: 0, KindDrain: 0, KindWelcome: 0, KindDatagrams: 0, KindLeave: 0,
}

// Endpoint names a QP on this host.
type Endpoint struct {
	GID verbs.GID
	QPN uint32
}

// Less orders endpoints, to decide who dials.
func (e Endpoint) Less(o Endpoint) bool {
	for i := range e.GID {
		if e.GID[i] != o.GID[i] {
			return e.GID[i] < o.GID[i]
		}
	}
	return e.QPN < o.QPN
}

// The flags of a hello.
const (
	HelloWakeSocket uint32 = 1 << 0 // the second descriptor is the wake-up socket
	HelloSRQ        uint32 = 1 << 1 // the receives come from a shared queue
	HelloUC         uint32 = 1 << 2 // the QP is of the unreliable service
	// HelloPlaceAtPoll says that the sender takes WRITEs with immediate in descriptors, and puts
	// what they bring at its place when it polls.
	HelloPlaceAtPoll uint32 = 1 << 3

	helloFlags = HelloWakeSocket | HelloSRQ | HelloUC | HelloPlaceAtPoll
)

// Hello is the first message of each side.
type Hello struct {
	From, To Endpoint
	Geometry Geometry
	Flags    uint32
}

// Descriptors returns how many come with it.
func (h *Hello) Descriptors() int {
	if h.Flags&HelloWakeSocket != 0 {
		return 2
	}
	return 1
}

// RemoteRights are the rights that a key can give.
const RemoteRights = verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic | verbs.AccessFlushGlobal

// MaxMRSize is the size of the largest region, in bytes.
const MaxMRSize = 1 << 40

// KeyAnswer says what a key stands for, if it is good.
type KeyAnswer struct {
	Key    uint32
	Good   bool
	Access verbs.Access
	Place  uint32 // of Header.Keys
	Addr   uint64
	Length uint64
	Offset uint64 // of the first byte in the descriptor's memory: a window's, 0 for others
}

// FaultKind is why a QP that went to ERR moves its peer's QP to ERR too.
type FaultKind uint32

// The faults.
const (
	FaultGone            FaultKind = iota // the QP failed or was closed for a reason of its own
	FaultAccess                           // an operation named memory that it may not touch
	FaultRequest                          // an operation that the QP does not let in
	FaultTooLong                          // the sender met a receive that is too short for its SEND
	FaultReceiveTooShort                  // the receiver took one from its SRQ and found it too short
	FaultReceiver                         // the receiver could not take the message for a reason of its own
	faultKinds
)

// Message is a parsed packet; Kind says which of the others counts.
type Message struct {
	Kind   byte
	Hello  Hello
	Key    uint32
	Answer KeyAnswer
	Fault  FaultKind
}

var errWire = errors.New("malformed message")

// Malformed returns the error for a packet that is not of the protocol.
func Malformed(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errWire}, args...)...)
}

// ParseMessage reads one packet. It accepts exactly what the encode functions
// make.
func ParseMessage(b []byte) (Message, error) {
	var m Message
	if len(b) < wireHeader || string(b[:3]) != "RJS" {
		return m, Malformed("no header in %d bytes", len(b))
	}
	if b[3] != wireVersion {
		return m, Malformed("version %d, only %d is known", b[3], wireVersion)
	}
	m.Kind = b[4]
	if m.Kind == 0 || int(m.Kind) >= len(bodyLength) || b[5] != 0 {
		return m, Malformed("kind %d", m.Kind)
	}
	body := b[wireHeader:]
	if n := int(binary.LittleEndian.Uint16(b[6:])); n != len(body) || n != bodyLength[m.Kind] {
		return m, Malformed("kind %d with %d bytes, %d announced", m.Kind, len(body), n)
	}
	return m, m.parseBody(body)
}

func (m *Message) parseBody(b []byte) error {
	u32 := func(at int) uint32 { return binary.LittleEndian.Uint32(b[at:]) }
	switch m.Kind {
	case KindHello:
		h := &m.Hello
		h.From = Endpoint{GID: verbs.GID(b[0:16]), QPN: u32(16)}
		h.To = Endpoint{GID: verbs.GID(b[20:36]), QPN: u32(36)}
		h.Geometry = Geometry{Receives: u32(40), SendBuf: u32(44)}
		h.Flags = u32(48)
		if h.From.QPN >= 1<<24 || h.To.QPN >= 1<<24 || h.Flags&^helloFlags != 0 {
			return Malformed("hello from QP %#x to %#x with flags %#x", h.From.QPN, h.To.QPN, h.Flags)
		}
		if both := HelloSRQ | HelloUC; h.Flags&both == both {
			return Malformed("hello of a UC QP with an SRQ")
		}
		if both := HelloSRQ | HelloPlaceAtPoll; h.Flags&both == both {
			return Malformed("hello of a QP with an SRQ that places at the poll")
		}
		if err := h.Geometry.Check(); err != nil {
			return Malformed("hello with a %v", err)
		}
	case KindKeyRequest, KindKeyGone:
		m.Key = u32(0)
	case KindKeyAnswer:
		a := &m.Answer
		a.Key, a.Access, a.Place = u32(0), verbs.Access(u32(8)), u32(12)
		a.Addr, a.Length = binary.LittleEndian.Uint64(b[16:]), binary.LittleEndian.Uint64(b[24:])
		a.Offset = binary.LittleEndian.Uint64(b[32:])
		a.Good = u32(4) == 1
		if u32(4) > 1 || a.Place >= KeySlots || a.Access&^RemoteRights != 0 {
			return Malformed("key answer %x", b)
		}
		if !a.Good && (a.Access != 0 || a.Place != 0 || a.Addr != 0 || a.Length != 0 || a.Offset != 0) {
			return Malformed("refused key with a region")
		}
		if a.Good && (a.Length == 0 || a.Length > MaxMRSize || a.Addr+a.Length < a.Addr || a.Offset > MaxMRSize-a.Length) {
			return Malformed("region of %d bytes at %#x, offset %d", a.Length, a.Addr, a.Offset)
		}
	case KindFault:
		m.Fault = FaultKind(u32(0))
		if m.Fault >= faultKinds || u32(4) != 0 {
			return Malformed("fault %d", m.Fault)
		}
	}
	return nil
}

func newPacket(kind byte) []byte {
	b := make([]byte, wireHeader, wireHeader+bodyLength[kind])
	copy(b, "RJS")
	b[3], b[4] = wireVersion, kind
	binary.LittleEndian.PutUint16(b[6:], uint16(bodyLength[kind]))
	return b
}

// EncodeHello makes the first message of a side.
func EncodeHello(h Hello) []byte {
	b := newPacket(KindHello)
	b = append(b, h.From.GID[:]...)
	b = binary.LittleEndian.AppendUint32(b, h.From.QPN)
	b = append(b, h.To.GID[:]...)
	b = binary.LittleEndian.AppendUint32(b, h.To.QPN)
	b = binary.LittleEndian.AppendUint32(b, h.Geometry.Receives)
	b = binary.LittleEndian.AppendUint32(b, h.Geometry.SendBuf)
	return binary.LittleEndian.AppendUint32(b, h.Flags)
}

// EncodeKey makes a message of a kind that has a key alone.
func EncodeKey(kind byte, key uint32) []byte {
	return binary.LittleEndian.AppendUint32(newPacket(kind), key)
}

// EncodeKeyAnswer makes the answer to a request for a key.
func EncodeKeyAnswer(a KeyAnswer) []byte {
	b := newPacket(KindKeyAnswer)
	good := uint32(0)
	if a.Good {
		good = 1
	}
	b = binary.LittleEndian.AppendUint32(b, a.Key)
	b = binary.LittleEndian.AppendUint32(b, good)
	b = binary.LittleEndian.AppendUint32(b, uint32(a.Access))
	b = binary.LittleEndian.AppendUint32(b, a.Place)
	b = binary.LittleEndian.AppendUint64(b, a.Addr)
	b = binary.LittleEndian.AppendUint64(b, a.Length)
	return binary.LittleEndian.AppendUint64(b, a.Offset)
}

// EncodeFault makes the message by which a QP moves its peer's QP to ERR.
func EncodeFault(k FaultKind) []byte {
	b := binary.LittleEndian.AppendUint32(newPacket(KindFault), uint32(k))
	return binary.LittleEndian.AppendUint32(b, 0)
}

// EncodeBare makes a message without a body.
func EncodeBare(kind byte) []byte { return newPacket(kind) }
