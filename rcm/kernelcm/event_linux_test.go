package kernelcm

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/handshake"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// rawEvent makes a struct rdma_ucm_event_resp.
func rawEvent(kind eventKind, status int32, private []byte) []byte {
	b := make([]byte, eventSize)
	order := binary.NativeEndian
	order.PutUint64(b[0:], 7)
	order.PutUint32(b[8:], 42)
	order.PutUint32(b[12:], uint32(kind))
	order.PutUint32(b[16:], uint32(status))
	copy(b[28:284], private)
	b[284] = uint8(len(private))
	b[286], b[287] = 3, 4
	return b
}

func TestAnEventSaysWhatTheKernelWrote(t *testing.T) {
	ev, err := parseEvent(rawEvent(eventRejected, -111, []byte("no")))
	require.NoError(t, err)
	ev.datagram = rcm.Destination{} // it is none
	require.Equal(t, cmEvent{
		uid: 7, id: 42, kind: eventRejected, status: -111, private: []byte("no"), resources: 3, depth: 4,
	}, ev)
}

// rawDatagram makes a struct rdma_ucm_event_resp of port space UDP.
func rawDatagram(kind eventKind, status int32, private []byte) []byte {
	b := rawEvent(kind, status, nil)
	order := binary.NativeEndian
	param := b[20:]
	order.PutUint32(param, 0x12345678)
	order.PutUint32(param[4:], 0x9abcdef0)
	ah := param[8:]
	copy(ah, net.IPv6loopback)
	order.PutUint32(ah[16:], 0xfff00005)
	copy(ah[20:], []byte{1, 2, 3})
	order.PutUint16(ah[24:], 0xc001)
	copy(ah[26:], []byte{4, 5, 6, 1, 7})
	copy(param[40:296], private)
	param[296] = byte(len(private))
	return b
}

func TestAnEventOfDatagramsSaysWhereTheyGo(t *testing.T) {
	ev, err := parseEvent(rawDatagram(eventEstablished, 0, []byte("welcome")))
	require.NoError(t, err)
	require.Equal(t, rcm.Destination{
		AV: verbs.AddressVector{
			DGID: verbs.GID(net.IPv6loopback), SGIDIndex: 1, FlowLabel: 5, HopLimit: 2, TrafficClass: 3,
			DLID: 0xc001, SL: 4, SrcPathBits: 5, StaticRate: 6, IsGlobal: true, Port: 7,
		},
		QPN: 0x345678, QKey: 0x9abcdef0, PrivateData: []byte("welcome"),
	}, ev.datagram)
}

func TestAnswersToALookupAreToldApart(t *testing.T) {
	for _, c := range []struct {
		status int32
		data   []byte
		is     error
	}{
		{sidrUnsupported, nil, rcm.ErrNoListener},
		{sidrReject, handshake.Refusal(rcm.ReasonNoResources), rcm.ErrBusy},
		{sidrReject, []byte("no"), syscall.ECONNREFUSED},
		{3, nil, rcm.ErrMalformed}, // IB_SIDR_NO_QP
	} {
		ev, err := parseEvent(rawDatagram(eventUnreachable, c.status, c.data))
		require.NoError(t, err)
		require.ErrorIs(t, refusal(ev), c.is)
	}
}

func TestAnEventOfAnOldKernelIsRead(t *testing.T) {
	_, err := parseEvent(rawEvent(eventEstablished, 0, nil)[:eventSizeOld])
	require.NoError(t, err)
	_, err = parseEvent(rawEvent(eventEstablished, 0, nil)[:eventSizeOld-1])
	require.ErrorIs(t, err, rcm.ErrMalformed)
}

func TestAnEventOutOfRangeIsNotOurOwn(t *testing.T) {
	_, err := parseEvent(rawEvent(eventLost, 0, nil))
	require.ErrorIs(t, err, rcm.ErrMalformed)
	ev, err := parseEvent(rawEvent(99, 0, nil))
	require.NoError(t, err)
	require.Equal(t, "EVENT(99)", ev.kind.String())
}

func FuzzCMEvent(f *testing.F) {
	for kind := range eventKindNames {
		f.Add(rawEvent(kind, 0, []byte("hello")))
		f.Add(rawEvent(kind, -110, handshake.Refusal(rcm.ReasonNoResources)))
	}
	f.Add(rawEvent(eventRejected, rcm.ReasonConsumer, bytes.Repeat([]byte{0xff}, 255)))
	f.Add(rawDatagram(eventUnreachable, sidrReject, bytes.Repeat([]byte{0xff}, 255)))
	f.Add(rawDatagram(eventJoined, 0, nil))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		before := bytes.Clone(b)
		ev, err := parseEvent(b)
		if !bytes.Equal(before, b) {
			t.Fatal("the parser changed the event")
		}
		if err != nil {
			return
		}
		if len(ev.private) > 255 || len(ev.datagram.PrivateData) > 255 || ev.datagram.QPN >= 1<<24 || ev.kind == eventLost {
			t.Fatalf("%+v", ev)
		}
		// What is made of it must not panic, and is an error.
		for _, err := range []error{rejection(ev), handshakeError(ev), resolveError(ev), refusal(ev)} {
			if err == nil || err.Error() == "" {
				t.Fatalf("%+v is no error", ev)
			}
		}
	})
}

func TestSocketAddressesSurviveTheKernelsForm(t *testing.T) {
	for _, s := range []string{"10.0.0.1:9000", "[fd00::1]:65535", "[fe80::1%lo]:1", "127.0.0.1:0"} {
		want := netip.MustParseAddrPort(s)
		var b [sockaddrSize]byte
		size, err := encodeSockaddr(&b, want)
		require.NoError(t, err)
		require.Equal(t, want, decodeSockaddr(&b, size))
		require.False(t, decodeSockaddr(&b, size-1).IsValid(), "cut off")
	}
	var b [sockaddrSize]byte
	size, err := encodeSockaddr(&b, netip.MustParseAddrPort("[::ffff:10.0.0.1]:5"))
	require.NoError(t, err)
	require.EqualValues(t, 16, size)
	require.Equal(t, []byte{unix.AF_INET, 0, 0, 5, 10, 0, 0, 1}, b[:8])
	_, err = encodeSockaddr(&b, netip.AddrPort{})
	require.Error(t, err)
	_, err = encodeSockaddr(&b, netip.MustParseAddrPort("[fe80::1%none]:1"))
	require.Error(t, err)
	require.False(t, decodeSockaddr(&[sockaddrSize]byte{27}, 48).IsValid(), "AF_IB")
}

func FuzzSockaddr(f *testing.F) {
	f.Add([]byte{2, 0, 0, 5, 10, 0, 0, 1}, uint16(16))
	f.Add([]byte{10, 0, 0, 5}, uint16(28))
	f.Fuzz(func(t *testing.T, raw []byte, size uint16) {
		var b [sockaddrSize]byte
		copy(b[:], raw)
		decodeSockaddr(&b, size)
	})
}

func TestARefusalSaysItsReasonThroughPadding(t *testing.T) {
	padded := append(handshake.Refusal(rcm.ReasonNoResources), make([]byte, 136)...)
	require.Equal(t, rcm.ReasonNoResources, handshake.RefusalReason(padded))
	require.Equal(t, rcm.ReasonInvalidService, handshake.RefusalReason(handshake.Refusal(rcm.ReasonInvalidService)))
	require.Equal(t, rcm.ReasonConsumer, handshake.RefusalReason(nil))
	require.Equal(t, rcm.ReasonConsumer, handshake.RefusalReason([]byte("full, come again")))
}

func TestARejectionMeansWhatItsStatusSays(t *testing.T) {
	for _, c := range []struct {
		name   string
		status int32
		data   []byte
		is     error
		reason int
	}{
		{"nobody listens", 8, nil, rcm.ErrNoListener, rcm.ReasonInvalidService},
		{"nobody listens, iWARP", -int32(unix.ECONNREFUSED), nil, rcm.ErrNoListener, rcm.ReasonInvalidService},
		{"the program refuses", 28, []byte("no"), unix.ECONNREFUSED, rcm.ReasonConsumer},
		{"the program refuses, iWARP", -int32(unix.ECONNRESET), []byte("no"), unix.ECONNREFUSED, rcm.ReasonConsumer},
		{"the listener is full", 28, handshake.Refusal(rcm.ReasonNoResources), rcm.ErrBusy, rcm.ReasonNoResources},
		{"the listener closes, iWARP", -int32(unix.ECONNRESET), handshake.Refusal(rcm.ReasonInvalidService), rcm.ErrNoListener, rcm.ReasonInvalidService},
		{"a reason of the specification", 10, nil, unix.ECONNREFUSED, 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := rejection(cmEvent{kind: eventRejected, status: c.status, private: c.data})
			require.ErrorIs(t, err, c.is)
			var rejected *rcm.RejectedError
			require.ErrorAs(t, err, &rejected)
			require.Equal(t, c.reason, rejected.Reason)
			if c.reason == rcm.ReasonConsumer {
				require.Equal(t, c.data, rejected.PrivateData)
			} else {
				require.Empty(t, rejected.PrivateData)
			}
		})
	}
	err := rejection(cmEvent{kind: eventRejected, status: -int32(unix.EPROTO)})
	require.ErrorIs(t, err, unix.EPROTO)
}
