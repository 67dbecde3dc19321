package handshake

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"testing"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

var testEnd = Endpoint{GID: verbs.GID{0xfe, 15: 1}, QPN: 0x123456, PSN: 0xabcdef}

func testMessages() map[string]Message {
	return map[string]Message{
		"REQ over IPv4": {
			Kind: KindRequest, From: testEnd, Resources: 3, Depth: 4,
			Src: netip.MustParseAddrPort("127.0.0.1:40000"), Dst: netip.MustParseAddrPort("127.0.0.2:9000"),
			Private: []byte("hello"),
		},
		"REQ over IPv6": {
			Kind: KindRequest, From: testEnd,
			Src: netip.MustParseAddrPort("[::1]:40000"), Dst: netip.MustParseAddrPort("[2001:db8::1]:1"),
			Private: bytes.Repeat([]byte{7}, rcm.MaxRequestData),
		},
		"REP":                     {Kind: KindReply, From: testEnd, Resources: 255, Private: []byte("welcome")},
		"REP of greatest length":  {Kind: KindReply, From: testEnd, Private: bytes.Repeat([]byte{9}, rcm.MaxReplyData)},
		"REJ":                     {Kind: KindReject, Reason: rcm.ReasonConsumer, Private: []byte("no")},
		"REJ for a private cause": {Kind: KindReject, Reason: rcm.ReasonPeerDenied},
		"RTU":                     {Kind: KindReady},
		"SHOW":                    {Kind: KindShow},
		"KEY without more":        {Kind: KindKey},
		"AWAIT":                   {Kind: KindAwait, Dst: netip.MustParseAddrPort("0.0.0.0:9000")},
		"AWAIT for IPv6 only":     {Kind: KindAwait, Dst: netip.MustParseAddrPort("[::]:9000"), V6Only: true},
		"HAND":                    {Kind: KindHand},
		"OFFER":                   {Kind: KindOffer},
		"TAKE":                    {Kind: KindTake},
		"LOOKUP": {
			Kind: KindLookup, Src: netip.MustParseAddrPort("127.0.0.1:40000"), Dst: netip.MustParseAddrPort("127.0.0.2:9000"),
			Private: []byte("hello"),
		},
		"LOOKUP of greatest length": {
			Kind: KindLookup, Src: netip.MustParseAddrPort("[::1]:1"), Dst: netip.MustParseAddrPort("[::1]:2"),
			Private: bytes.Repeat([]byte{7}, rcm.MaxLookupData),
		},
		"FOUND":                    {Kind: KindFound, From: Endpoint{GID: testEnd.GID, QPN: testEnd.QPN}, Private: []byte("welcome")},
		"FOUND of greatest length": {Kind: KindFound, From: Endpoint{GID: testEnd.GID}, Private: bytes.Repeat([]byte{9}, rcm.MaxLookupReplyData)},
		"KEY of two parts":         {Kind: KindKey, Private: bytes.Repeat([]byte{5}, 64)},
	}
}

func TestMessagesSurviveTheWire(t *testing.T) {
	for name, m := range testMessages() {
		t.Run(name, func(t *testing.T) {
			packet := m.AppendTo(nil)
			require.LessOrEqual(t, len(packet), MaxMessage)
			got, err := Parse(packet)
			require.NoError(t, err)
			require.Equal(t, m, got)
		})
	}
}

func TestMessageBytesAreThoseOfTheDocumentation(t *testing.T) {
	for _, c := range []struct {
		m    Message
		want string
	}{
		{Message{Kind: KindReady}, "524a434d 02 04 0008"},
		{
			Message{Kind: KindAwait, Dst: netip.MustParseAddrPort("[::]:9000"), V6Only: true},
			"524a434d 02 07 0020 00000000000000000000000000000000 2328 06 00 01 000000",
		},
		{Message{Kind: KindHand}, "524a434d 02 08 0008"},
		{
			Message{
				Kind: KindLookup, Private: []byte{0xbb},
				Src: netip.MustParseAddrPort("127.0.0.1:256"), Dst: netip.MustParseAddrPort("[::1]:9000"),
			},
			"524a434d 02 0b 0035 00000000000000000000ffff7f000001 0100 04 00" +
				"00000000000000000000000000000001 2328 06 00 00000001 bb",
		},
		{
			Message{Kind: KindFound, From: Endpoint{GID: testEnd.GID, QPN: testEnd.QPN}, Private: []byte{0xaa}},
			"524a434d 02 0c 0021 fe000000000000000000000000000001 00123456 00000001 aa",
		},
		{Message{Kind: KindReject, Reason: 28, Private: []byte{0xaa}}, "524a434d 02 03 000d 001c 0001 aa"},
		{
			Message{
				Kind: KindRequest, From: testEnd, Resources: 3, Depth: 4, Private: []byte{0xbb},
				Src: netip.MustParseAddrPort("127.0.0.1:256"), Dst: netip.MustParseAddrPort("[::1]:9000"),
			},
			"524a434d 02 01 004d fe000000000000000000000000000001 00123456 00abcdef 03 04 0001" +
				"00000000000000000000ffff7f000001 0100 04 00" +
				"00000000000000000000000000000001 2328 06 00 bb",
		},
	} {
		want, err := hex.DecodeString(string(bytes.ReplaceAll([]byte(c.want), []byte(" "), nil)))
		require.NoError(t, err)
		require.Equal(t, want, c.m.AppendTo(nil), c.m.Kind)
	}
}

func TestParserRefusesWhatIsNotAMessage(t *testing.T) {
	req := testMessages()["REQ over IPv4"]
	rep := testMessages()["REP"]
	rej := testMessages()["REJ"]
	await := testMessages()["AWAIT"]
	lookup, found := testMessages()["LOOKUP"], testMessages()["FOUND"]
	change := func(m Message, at int, b ...byte) []byte {
		p := m.AppendTo(nil)
		copy(p[at:], b)
		return p
	}
	// resize changes the packet and the length that its header says.
	resize := func(m Message, n int) []byte {
		p := append(m.AppendTo(nil), make([]byte, 512)...)[:n]
		p[6], p[7] = byte(n>>8), byte(n)
		return p
	}
	for name, packet := range map[string][]byte{
		"nothing":                           {},
		"half a header":                     []byte("RJCM"),
		"HTTP":                              []byte("GET / HTTP/1.1\r\n\r\n"),
		"length too small":                  change(req, 6, 0, 76),
		"length too great":                  change(req, 6, 1, 0),
		"kind 0":                            change(req, 5, 0),
		"kind 13":                           change(req, 5, 13),
		"LOOKUP cut off":                    resize(lookup, lookupSize-1),
		"LOOKUP with a tail":                resize(lookup, lookupSize+6),
		"LOOKUP with too much private data": resizePrivate(lookup, lookupSize-2, rcm.MaxLookupData+1),
		"LOOKUP with 4 GiB of fantasy":      change(lookup, lookupSize-4, 0xff, 0xff, 0xff, 0xff),
		"LOOKUP from port 0":                change(lookup, headerSize+16, 0, 0),
		"LOOKUP of port 0":                  change(lookup, headerSize+addrSize+16, 0, 0),
		"FOUND cut off":                     resize(found, foundSize-1),
		"FOUND with a tail":                 resize(found, foundSize+8),
		"FOUND with too much private data":  resizePrivate(found, foundSize-2, rcm.MaxLookupReplyData+1),
		"FOUND without GID":                 change(found, headerSize, make([]byte, 16)...),
		"FOUND with the GID of a group":     change(found, headerSize, 0xff),
		"FOUND with the QP of a group":      change(found, headerSize+16, 0, 0xff, 0xff, 0xff),
		"FOUND with a QP of 25 bits":        change(found, headerSize+16, 1),
		"KEY of half a nonce":               resize(Message{Kind: KindKey}, headerSize+keyPart/2),
		"KEY with a tail":                   resize(Message{Kind: KindKey}, headerSize+3*keyPart),
		"SHOW with a tail":                  resize(Message{Kind: KindShow}, headerSize+1),
		"AWAIT with a tail":                 resize(await, awaitSize+1),
		"AWAIT cut off":                     resize(await, awaitSize-1),
		"AWAIT with an unknown flag":        change(await, headerSize+addrSize, 2),
		"AWAIT of no port":                  change(await, headerSize+16, 0, 0),
		"HAND with a tail":                  resize(Message{Kind: KindHand}, headerSize+1),
		"OFFER with a tail":                 resize(Message{Kind: KindOffer}, headerSize+1),
		"TAKE with a tail":                  resize(Message{Kind: KindTake}, headerSize+1),
		"RTU with a tail":                   resize(Message{Kind: KindReady}, headerSize+1),
		"REQ cut off":                       resize(req, requestSize-1),
		"REP cut off":                       resize(rep, replySize-1),
		"REJ cut off":                       resize(rej, rejectSize-1),
		"REQ with less data than said":      resize(req, requestSize+4),
		"REQ with more data than said":      resize(req, requestSize+6),
		"REQ without GID":                   change(req, 8, make([]byte, 16)...),
		"QP number of 25 bits":              change(req, 24, 1),
		"packet number of 25 bits":          change(req, 28, 1),
		"source port 0":                     change(req, 52, 0, 0),
		"destination port 0":                change(req, 72, 0, 0),
		"family 5":                          change(req, 54, 5),
		"IPv4 address of family 6":          change(req, 54, 6),
		"reserved byte of an address":       change(req, 55, 1),
		"REQ with too much private data":    resizePrivate(req, 34, rcm.MaxRequestData+1),
		"REP with too much private data":    resizePrivate(rep, 34, rcm.MaxReplyData+1),
		"REJ with too much private data":    resizePrivate(rej, 10, rcm.MaxRejectData+1),
		"REP with 65535 bytes of fantasy":   change(rep, 34, 0xff, 0xff),
		"REJ with a length beyond the end":  change(rej, 10, 0, 3),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse(packet)
			require.ErrorIs(t, err, rcm.ErrMalformed)
		})
	}
}

// resizePrivate returns m with n bytes of private data, consistently.
func resizePrivate(m Message, lengthAt, n int) []byte {
	m.Private = make([]byte, n)
	p := m.AppendTo(nil)
	p[lengthAt], p[lengthAt+1] = byte(n>>8), byte(n)
	return p
}

func TestParserTellsAnotherVersionFromGarbage(t *testing.T) {
	m := Message{Kind: KindReady}
	p := m.AppendTo(nil)
	p[4] = 1
	_, err := Parse(p)
	require.ErrorIs(t, err, ErrVersion)
	require.NotErrorIs(t, err, rcm.ErrMalformed)
}

func TestParserKeepsNothingOfThePacket(t *testing.T) {
	m := testMessages()["REJ"]
	p := m.AppendTo(nil)
	got, err := Parse(p)
	require.NoError(t, err)
	clear(p)
	require.Equal(t, []byte("no"), got.Private)
}

func FuzzParseMessage(f *testing.F) {
	for _, m := range testMessages() {
		f.Add(m.AppendTo(nil))
	}
	f.Fuzz(func(t *testing.T, packet []byte) {
		before := bytes.Clone(packet)
		m, err := Parse(packet)
		if !bytes.Equal(before, packet) {
			t.Fatal("the parser changed the packet")
		}
		if err != nil {
			return
		}
		if len(packet) > MaxMessage {
			t.Fatalf("accepted %d bytes", len(packet))
		}
		// An accepted message has one encoding: what was read.
		if again := m.AppendTo(nil); !bytes.Equal(again, packet) {
			t.Fatalf("%x parsed as %+v, which is %x", packet, m, again)
		}
	})
}
