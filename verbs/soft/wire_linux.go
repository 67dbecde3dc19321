package soft

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
//	all      0 "RJS"  3 version (4)  4 kind  5 zero  6 length of the body (2)
//	hello    8 GID of the sender (16)  24 its QPN (4)  28 GID of the receiver (16)  44 its QPN (4)
//	         48 receives (4)  52 bytes of the SEND buffer (4)  56 flags (4)
//	         descriptors: segment, and a wake-up socket if flags has helloWakeSocket
//	key-request, key-gone
//	         8 key (4)
//	key-answer
//	         8 key (4)  12 good (4)  16 access (4)  20 place among the keys (4)  24 address (8)  32 length (8)
//	         40 offset in the descriptor (8)
//	         descriptor: the region, if good
//	fault    8 what (4)  12 zero (4)
//	kick, drain, welcome, datagrams
//	         (no body)
//
// The one who dialed says hello first and gets a hello back; after that each
// side sends what it has. Where the kernel keeps descriptors off until the dialer
// is admitted, sending its hello fails with EPERM before the welcome that it then
// gets, in any case before the hello.
const (
	kindHello byte = 1 + iota
	kindKeyRequest
	kindKeyAnswer
	kindKeyGone
	kindFault
	kindKick      // there is news in my segment
	kindDrain     // take what is in your segment, I wait for room
	kindWelcome   // I take descriptors from you
	kindDatagrams // instead of a hello: datagrams follow (datagramroute_linux.go)
)

const (
	wireVersion = 4
	wireHeader  = 8
	maxMessage  = 128 // longer than any message of this version
)

var bodyLength = [...]int{
	kindHello: 52, kindKeyRequest: 4, kindKeyAnswer: 40, kindKeyGone: 4, kindFault: 8, kindKick: 0, kindDrain: 0, kindWelcome: 0, kindDatagrams: 0,
}

// endpoint names a QP on this host.
type endpoint struct {
	gid verbs.GID
	qpn uint32
}

// less orders endpoints, to decide who dials.
func (e endpoint) less(o endpoint) bool {
	for i := range e.gid {
		if e.gid[i] != o.gid[i] {
			return e.gid[i] < o.gid[i]
		}
	}
	return e.qpn < o.qpn
}

// The flags of a hello.
const (
	helloWakeSocket uint32 = 1 << 0 // the second descriptor is the wake-up socket
	helloSRQ        uint32 = 1 << 1 // the receives come from a shared queue
	helloUC         uint32 = 1 << 2 // the QP is of the unreliable service
)

type hello struct {
	from, to endpoint
	geo      geometry
	flags    uint32
}

// descriptors returns how many come with it.
func (h *hello) descriptors() int {
	if h.flags&helloWakeSocket != 0 {
		return 2
	}
	return 1
}

type keyAnswer struct {
	key    uint32
	good   bool
	access verbs.Access
	place  uint32 // of header.keys
	addr   uint64
	length uint64
	offset uint64 // of the first byte in the descriptor's memory: a window's, 0 for others
}

// faultKind is why a QP that went to ERR takes its peer along.
type faultKind uint32

// The faults.
const (
	faultGone            faultKind = iota // the QP failed or was closed for a reason of its own
	faultAccess                           // an operation named memory that it may not touch
	faultRequest                          // an operation that the QP does not let in
	faultTooLong                          // the sender met a receive that is too short for its SEND
	faultReceiveTooShort                  // the receiver took one from its SRQ and found it too short
	faultReceiver                         // the receiver could not take the message for a reason of its own
	faultKinds
)

// message is a parsed packet; kind says which of the others counts.
type message struct {
	kind   byte
	hello  hello
	key    uint32
	answer keyAnswer
	fault  faultKind
}

var errWire = errors.New("malformed message")

func errMalformed(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errWire}, args...)...)
}

// parseMessage reads one packet. It accepts exactly what the encode functions
// make.
func parseMessage(b []byte) (message, error) {
	var m message
	if len(b) < wireHeader || string(b[:3]) != "RJS" {
		return m, errMalformed("no header in %d bytes", len(b))
	}
	if b[3] != wireVersion {
		return m, errMalformed("version %d, only %d is known", b[3], wireVersion)
	}
	m.kind = b[4]
	if m.kind == 0 || int(m.kind) >= len(bodyLength) || b[5] != 0 {
		return m, errMalformed("kind %d", m.kind)
	}
	body := b[wireHeader:]
	if n := int(binary.LittleEndian.Uint16(b[6:])); n != len(body) || n != bodyLength[m.kind] {
		return m, errMalformed("kind %d with %d bytes, %d announced", m.kind, len(body), n)
	}
	return m, m.parseBody(body)
}

func (m *message) parseBody(b []byte) error {
	u32 := func(at int) uint32 { return binary.LittleEndian.Uint32(b[at:]) }
	switch m.kind {
	case kindHello:
		h := &m.hello
		h.from = endpoint{gid: verbs.GID(b[0:16]), qpn: u32(16)}
		h.to = endpoint{gid: verbs.GID(b[20:36]), qpn: u32(36)}
		h.geo = geometry{receives: u32(40), sendBuf: u32(44)}
		h.flags = u32(48)
		if h.from.qpn >= 1<<24 || h.to.qpn >= 1<<24 || h.flags&^(helloWakeSocket|helloSRQ|helloUC) != 0 {
			return errMalformed("hello from QP %#x to %#x with flags %#x", h.from.qpn, h.to.qpn, h.flags)
		}
		if both := helloSRQ | helloUC; h.flags&both == both {
			return errMalformed("hello of a UC QP with an SRQ")
		}
		if err := h.geo.check(); err != nil {
			return errMalformed("hello with a %v", err)
		}
	case kindKeyRequest, kindKeyGone:
		m.key = u32(0)
	case kindKeyAnswer:
		a := &m.answer
		a.key, a.access, a.place = u32(0), verbs.Access(u32(8)), u32(12)
		a.addr, a.length = binary.LittleEndian.Uint64(b[16:]), binary.LittleEndian.Uint64(b[24:])
		a.offset = binary.LittleEndian.Uint64(b[32:])
		a.good = u32(4) == 1
		if u32(4) > 1 || a.place >= keySlots || a.access&^remoteRights != 0 {
			return errMalformed("key answer %x", b)
		}
		if !a.good && (a.access != 0 || a.place != 0 || a.addr != 0 || a.length != 0 || a.offset != 0) {
			return errMalformed("refused key with a region")
		}
		if a.good && (a.length == 0 || a.length > maxMRSize || a.addr+a.length < a.addr || a.offset > maxMRSize-a.length) {
			return errMalformed("region of %d bytes at %#x, offset %d", a.length, a.addr, a.offset)
		}
	case kindFault:
		m.fault = faultKind(u32(0))
		if m.fault >= faultKinds || u32(4) != 0 {
			return errMalformed("fault %d", m.fault)
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

func encodeHello(h hello) []byte {
	b := newPacket(kindHello)
	b = append(b, h.from.gid[:]...)
	b = binary.LittleEndian.AppendUint32(b, h.from.qpn)
	b = append(b, h.to.gid[:]...)
	b = binary.LittleEndian.AppendUint32(b, h.to.qpn)
	b = binary.LittleEndian.AppendUint32(b, h.geo.receives)
	b = binary.LittleEndian.AppendUint32(b, h.geo.sendBuf)
	return binary.LittleEndian.AppendUint32(b, h.flags)
}

func encodeKey(kind byte, key uint32) []byte {
	return binary.LittleEndian.AppendUint32(newPacket(kind), key)
}

func encodeKeyAnswer(a keyAnswer) []byte {
	b := newPacket(kindKeyAnswer)
	good := uint32(0)
	if a.good {
		good = 1
	}
	b = binary.LittleEndian.AppendUint32(b, a.key)
	b = binary.LittleEndian.AppendUint32(b, good)
	b = binary.LittleEndian.AppendUint32(b, uint32(a.access))
	b = binary.LittleEndian.AppendUint32(b, a.place)
	b = binary.LittleEndian.AppendUint64(b, a.addr)
	b = binary.LittleEndian.AppendUint64(b, a.length)
	return binary.LittleEndian.AppendUint64(b, a.offset)
}

func encodeFault(k faultKind) []byte {
	b := binary.LittleEndian.AppendUint32(newPacket(kindFault), uint32(k))
	return binary.LittleEndian.AppendUint32(b, 0)
}

func encodeBare(kind byte) []byte { return newPacket(kind) }
