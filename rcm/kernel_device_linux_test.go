package rcm

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// netlinkAnswer makes a message of RDMA netlink.
func netlinkAnswer(msg uint16, attrs ...[]byte) []byte {
	order := binary.NativeEndian
	b := make([]byte, netlinkHeaderSize)
	order.PutUint16(b[4:], msg)
	for _, a := range attrs {
		b = append(b, a...)
		for len(b)%4 != 0 {
			b = append(b, 0)
		}
	}
	order.PutUint32(b, uint32(len(b)))
	return b
}

func netlinkAttr(typ uint16, value string) []byte {
	order := binary.NativeEndian
	b := order.AppendUint16(nil, uint16(netlinkAttrSize+len(value)))
	b = order.AppendUint16(b, typ)
	return append(b, value...)
}

func TestNetlinkAnswersAreRead(t *testing.T) {
	b := netlinkAnswer(nldevGet, netlinkAttr(1, "\x01\x00\x00\x00"), netlinkAttr(2, "rxe0\x00"), netlinkAttr(3, "x"))
	attrs, err := parseNetlink(b, nldevGet)
	require.NoError(t, err)
	require.Equal(t, map[uint16][]byte{1: {1, 0, 0, 0}, 2: []byte("rxe0\x00"), 3: []byte("x")}, attrs)
}

func TestNetlinkAnswersThatAreNoneAreRefused(t *testing.T) {
	good := netlinkAnswer(nldevGet, netlinkAttr(2, "rxe0\x00"))
	change := func(at int, v byte) []byte {
		b := append([]byte(nil), good...)
		b[at] = v
		return b
	}
	for name, b := range map[string][]byte{
		"nothing":               {},
		"cut off":               good[:15],
		"longer than it is":     change(0, 200),
		"shorter than a header": change(0, 15),
		"of another kind":       change(4, 9),
		"attribute too long":    change(16, 100),
		"attribute too short":   change(16, 3),
		"an acknowledgement":    netlinkAnswer(unix.NLMSG_ERROR, make([]byte, 20)),
	} {
		_, err := parseNetlink(b, nldevGet)
		require.ErrorIs(t, err, ErrMalformed, name)
	}
	refused := netlinkAnswer(unix.NLMSG_ERROR, binary.NativeEndian.AppendUint32(nil, uint32(0xffffffff-uint32(unix.ENODEV)+1)))
	_, err := parseNetlink(refused, nldevGet)
	require.ErrorIs(t, err, unix.ENODEV)
}

func FuzzCMNetlink(f *testing.F) {
	f.Add(netlinkAnswer(nldevGet, netlinkAttr(2, "rxe0\x00")))
	f.Add(netlinkAnswer(unix.NLMSG_ERROR, make([]byte, 20)))
	f.Fuzz(func(t *testing.T, b []byte) {
		attrs, err := parseNetlink(b, nldevGet)
		if err != nil {
			return
		}
		total := 0
		for _, a := range attrs {
			total += len(a)
		}
		if total > len(b) {
			t.Fatalf("%d bytes of attributes in %d", total, len(b))
		}
	})
}

func TestPortsCarryTrafficInTheirActiveStates(t *testing.T) {
	for line, want := range map[string]bool{
		"0: NOP": false, "1: DOWN": false, "2: INIT": false, "3: ARMED": false, "4: ACTIVE": true, "5: ACTIVE_DEFER": true,
		"": false, ":": false, "-4: ACTIVE": false, "9999: ACTIVE": false, "ACTIVE": false, "3": false,
	} {
		name, active := portState(line)
		require.Equal(t, want, active, "%q", line)
		require.NotEmpty(t, name, "%q", line)
	}
}

func TestSysfsTellsTheTransport(t *testing.T) {
	for want, lines := range map[verbs.Transport][2]string{
		verbs.TransportIWARP: {"4: RNIC", "Ethernet"},
		verbs.TransportRoCE:  {"1: CA", "Ethernet"},
		verbs.TransportIB:    {"1: CA", "InfiniBand"},
	} {
		require.Equal(t, want, transportBy(lines[0], lines[1]))
	}
}

// FuzzCMSysfs has sysfs say anything of a device: a port is active only with a
// number that says so, and no text is taken for another device's GUID.
func FuzzCMSysfs(f *testing.F) {
	f.Add("4: ACTIVE", "1: CA", "Ethernet", "0200:00ff:fe00:0001")
	f.Add("1: DOWN", "4: RNIC", "", "")
	f.Add("4", ":", "InfiniBand", "0:0:0:0")
	f.Fuzz(func(t *testing.T, state, node, link, guid string) {
		if name, active := portState(state); active && !strings.ContainsAny(state[:1], "0123456789") {
			t.Fatalf("%q is active, as %q", state, name)
		}
		transport := transportBy(node, link)
		if (transport == verbs.TransportIWARP) != strings.HasPrefix(node, "4:") {
			t.Fatalf("%q is %v", node, transport)
		}
		var binary [8]byte
		copy(binary[:], guid)
		if len(guidText(binary)) != len("0200:00ff:fe00:0001") {
			t.Fatalf("GUID %q is %q", guid, guidText(binary))
		}
	})
}
