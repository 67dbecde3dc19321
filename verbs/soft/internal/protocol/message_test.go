//go:build linux

package protocol

import (
	"testing"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

var goodMessages = []Message{
	{Kind: KindHello, Hello: Hello{
		From: Endpoint{GID: verbs.GID{1, 2, 3}, QPN: 0xabcdef}, To: Endpoint{GID: verbs.GID{15: 9}, QPN: 2},
		Geometry: GeometryFor(64), Flags: HelloWakeSocket | HelloSRQ,
	}},
	{Kind: KindKeyRequest, Key: 0x12345678},
	{Kind: KindKeyGone, Key: 0xffffffff},
	{Kind: KindKeyAnswer, Answer: KeyAnswer{Key: 7}},
	{Kind: KindKeyAnswer, Answer: KeyAnswer{Key: 7, Good: true, Access: RemoteRights, Place: 768, Addr: 0x7f0000001000, Length: 4096}},
	{Kind: KindFault, Fault: FaultReceiveTooShort},
	{Kind: KindNotify},
	{Kind: KindDrain},
	{Kind: KindKeyAnswer, Answer: KeyAnswer{Key: 8, Good: true, Access: verbs.AccessRemoteRead, Addr: 0x7f0000001400, Length: 1024, Offset: 1024}},
}

func encode(m Message) []byte {
	switch m.Kind {
	case KindHello:
		return EncodeHello(m.Hello)
	case KindKeyRequest, KindKeyGone:
		return EncodeKey(m.Kind, m.Key)
	case KindKeyAnswer:
		return EncodeKeyAnswer(m.Answer)
	case KindFault:
		return EncodeFault(m.Fault)
	}
	return EncodeBare(m.Kind)
}

func TestMessagesSurviveTheWire(t *testing.T) {
	for _, m := range goodMessages {
		b := encode(m)
		require.LessOrEqual(t, len(b), MaxMessage)
		got, err := ParseMessage(b)
		require.NoError(t, err)
		require.Equal(t, m, got)
	}
}

// The layout is what other processes rely on, perhaps of another build.
func TestHelloIsLaidOutAsDocumented(t *testing.T) {
	b := EncodeHello(Hello{
		From: Endpoint{GID: verbs.GID{0: 0xa1, 15: 0xa2}, QPN: 0x010203}, To: Endpoint{GID: verbs.GID{0: 0xb1, 15: 0xb2}, QPN: 0x040506},
		Geometry: Geometry{Receives: 64, SendBuf: 1 << 18}, Flags: HelloWakeSocket,
	})
	require.Equal(t, []byte{
		'R', 'J', 'S', 6, 1, 0, 52, 0,
		0xa1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xa2, 3, 2, 1, 0,
		0xb1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xb2, 6, 5, 4, 0,
		64, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0,
	}, b)
}

func TestMalformedMessagesAreRefused(t *testing.T) {
	change := func(m Message, at int, b ...byte) []byte {
		out := encode(m)
		copy(out[at:], b)
		return out
	}
	helloMessage, answer := goodMessages[0], goodMessages[4]
	for name, b := range map[string][]byte{
		"empty":                           {},
		"short":                           encode(helloMessage)[:7],
		"cut off":                         encode(helloMessage)[:30],
		"too long":                        append(encode(helloMessage), 0),
		"another protocol":                change(helloMessage, 0, 'X'),
		"another version":                 change(helloMessage, 3, 1),
		"kind 0":                          change(helloMessage, 4, 0),
		"kind too large":                  change(helloMessage, 4, 99),
		"reserved byte":                   change(helloMessage, 5, 1),
		"length that lies":                change(helloMessage, 6, 51),
		"QPN of 25 bits":                  change(helloMessage, 27, 1),
		"no receives":                     change(helloMessage, 48, 0, 0, 0, 0),
		"receives not a power of two":     change(helloMessage, 48, 65),
		"receives without end":            change(helloMessage, 48, 0, 0, 0, 0x80),
		"SEND buffer without end":         change(helloMessage, 52, 0, 0, 0, 0x80),
		"SEND buffer too small":           change(helloMessage, 52, 64, 0, 0, 0),
		"unknown flags":                   change(helloMessage, 56, 0xff),
		"UC that receives from an SRQ":    change(helloMessage, 56, byte(HelloUC|HelloSRQ)),
		"SRQ, and places at the poll":     change(helloMessage, 56, byte(HelloPlaceAtPoll|HelloSRQ)),
		"good neither 0 nor 1":            change(answer, 12, 2),
		"rights that do not exist":        change(answer, 16, 0xff, 0xff),
		"place that does not exist":       change(answer, 20, 0xff, 0xff),
		"refusal with a place":            change(goodMessages[3], 20, 1),
		"region of no bytes":              change(answer, 32, 0, 0, 0, 0, 0, 0, 0, 0),
		"region larger than any":          change(answer, 32, 0, 0, 0, 0, 0, 0, 0, 0x7f),
		"region that wraps":               change(answer, 24, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff),
		"region behind the end of all":    change(answer, 40, 0, 0, 0, 0, 0, 0, 0, 0x7f),
		"refusal with a region":           change(answer, 12, 0),
		"fault that does not exist":       change(goodMessages[5], 8, 99),
		"fault with something behind":     change(goodMessages[5], 12, 1),
		"key request without key":         encode(goodMessages[6]),
		"notify with something behind it": append(EncodeBare(KindNotify), 1, 2, 3, 4),
	} {
		if name == "key request without key" {
			b[4] = KindKeyRequest
		}
		t.Run(name, func(t *testing.T) {
			_, err := ParseMessage(b)
			require.ErrorIs(t, err, errWire)
		})
	}
}

// FuzzMessage: nothing panics, and what is accepted is what encode makes.
func FuzzMessage(f *testing.F) {
	for _, m := range goodMessages {
		f.Add(encode(m))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := ParseMessage(b)
		if err == nil {
			require.Equal(t, b, encode(m))
		}
	})
}
