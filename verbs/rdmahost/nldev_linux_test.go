package rdmahost

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// message is a netlink message as the kernel sends it.
func message(typ, flags uint16, seq uint32, body []byte) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+len(body)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = binary.NativeEndian.AppendUint16(b, flags)
	b = binary.NativeEndian.AppendUint32(b, seq)
	b = binary.NativeEndian.AppendUint32(b, 0)
	b = append(b, body...)
	return append(b, make([]byte, -len(b)&3)...)
}

func errnoBody(errno int32) []byte {
	return binary.NativeEndian.AppendUint32(nil, uint32(-errno))
}

func attrUint64Bytes(v uint64) []byte { return binary.NativeEndian.AppendUint64(nil, v) }

// rxeAttrs is the answer to GET for rxe0.
func rxeAttrs() []byte {
	b := appendAttrUint32(nil, nldevDevIndex, 3)
	b = appendAttr(b, nldevDevName, []byte("rxe0\x00"))
	b = appendAttrUint32(b, nldevPortIndex, 1)
	b = appendAttr(b, 4, attrUint64Bytes(0x8000)) // device capabilities, which we do not read here
	b = appendAttr(b, nldevFWVersion, []byte("1.0\x00"))
	b = appendAttr(b, nldevNodeGUID, attrUint64Bytes(0x505400fffe123456))
	b = appendAttr(b, nldevNodeType, []byte{nodeCA})
	return appendAttr(b, nldevProtocol, []byte("roce\x00"))
}

func chardevAttrs() []byte {
	b := appendAttr(nil, nldevChardevName, []byte("uverbs0\x00"))
	b = appendAttr(b, nldevChardevABI, attrUint64Bytes(2))
	b = appendAttr(b, nldevChardevDev, attrUint64Bytes(231<<8|0xc0))
	return appendAttrUint32(b, nldevUverbsDriver, uint32(DriverRXE))
}

func TestNetlinkDescribesADevice(t *testing.T) {
	d, ok := parseDevice(rxeAttrs())
	require.True(t, ok)
	d.parseChardev(chardevAttrs())
	require.Equal(t, Device{
		Name: "rxe0", Index: 3, Node: "uverbs0", Major: 231, Minor: 192, ABI: 2, DriverID: DriverRXE,
		NodeType: nodeCA, NodeGUID: 0x505400fffe123456, Transport: verbs.TransportRoCE, Ports: 1, Firmware: "1.0",
	}, d)
}

func TestLargeDeviceNumbersAreDecoded(t *testing.T) {
	var d Device
	const major, minor = 0xabc, 0x54321
	d.parseChardev(appendAttr(nil, nldevChardevDev, attrUint64Bytes(minor&0xff|major<<8|(minor&^0xff)<<12)))
	require.EqualValues(t, major, d.Major)
	require.EqualValues(t, minor, d.Minor)
}

func TestDeviceWithoutAUsableNameIsLeftOut(t *testing.T) {
	for _, name := range []string{"", "../x", "a/b"} {
		b := appendAttrUint32(nil, nldevDevIndex, 3)
		_, ok := parseDevice(appendAttr(b, nldevDevName, append([]byte(name), 0)))
		require.False(t, ok, "%q", name)
	}
	_, ok := parseDevice(appendAttr(nil, nldevDevName, []byte("rxe0\x00")))
	require.False(t, ok, "no index")
}

func TestNodeTypeDecidesWhereNetlinkNamesNoProtocol(t *testing.T) {
	for _, c := range []struct {
		protocol  string
		node      uint8
		linkLayer string
		want      verbs.Transport
	}{
		{"iw", nodeRNIC, "", verbs.TransportIWARP},
		{"", nodeRNIC, "Ethernet", verbs.TransportIWARP},
		{"roce", nodeCA, "", verbs.TransportRoCE},
		{"", nodeCA, "Ethernet", verbs.TransportRoCE},
		{"", nodeCA, "InfiniBand", verbs.TransportIB},
		{"ib", nodeCA, "", verbs.TransportIB},
		{"opa", nodeCA, "", verbs.TransportIB},
	} {
		require.Equal(t, c.want, transportOf(c.protocol, c.node, c.linkLayer), "%+v", c)
	}
}

func TestAnswerEndsAsTheKernelSays(t *testing.T) {
	const seq = 7
	device := message(nldevGet, unix.NLM_F_MULTI, seq, rxeAttrs())
	join := func(parts ...[]byte) (b []byte) {
		for _, p := range parts {
			b = append(b, p...)
		}
		return b
	}
	done := message(unix.NLMSG_DONE, unix.NLM_F_MULTI, seq, errnoBody(0))
	for _, c := range []struct {
		name    string
		in      []byte
		devices int
		done    bool
		err     error
	}{
		{"more to come", join(device, device), 2, false, nil},
		{"end of a dump", join(device, done), 1, true, nil},
		{"end of a dump that failed", message(unix.NLMSG_DONE, 0, seq, errnoBody(int32(unix.EBUSY))), 0, true, unix.EBUSY},
		{"acknowledgement", join(device, message(unix.NLMSG_ERROR, 0, seq, errnoBody(0))), 1, true, nil},
		{"refusal", message(unix.NLMSG_ERROR, 0, seq, errnoBody(int32(unix.EPERM))), 0, true, unix.EPERM},
		{"interrupted dump", join(message(nldevGet, unix.NLM_F_DUMP_INTR, seq, rxeAttrs()), done), 1, true, errInterrupted},
		{"answer to another request", message(nldevGet, 0, seq-1, rxeAttrs()), 0, false, nil},
		{"no operation", message(unix.NLMSG_NOOP, 0, seq, nil), 0, false, nil},
		{"overrun", message(unix.NLMSG_OVERRUN, 0, seq, nil), 0, true, unix.ENOBUFS},
		{"error without a code", message(unix.NLMSG_ERROR, 0, seq, nil), 0, true, errNetlink},
		{"truncated header", device[:12], 0, true, errNetlink},
		{"length beyond the datagram", device[:len(device)-8], 0, true, errNetlink},
		{"length below a header", make([]byte, 64), 0, true, errNetlink},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := 0
			r := netlinkReply{seq: seq}
			done, err := r.take(c.in, func(b []byte) {
				if _, ok := parseDevice(b); ok {
					n++
				}
			})
			require.Equal(t, c.done, done)
			require.ErrorIs(t, err, c.err)
			require.Equal(t, c.devices, n)
		})
	}
}

func TestInterruptionIsRememberedOverDatagrams(t *testing.T) {
	r := netlinkReply{seq: 1}
	done, err := r.take(message(nldevGet, unix.NLM_F_DUMP_INTR, 1, nil), func([]byte) {})
	require.False(t, done)
	require.NoError(t, err)
	done, err = r.take(message(unix.NLMSG_DONE, 0, 1, errnoBody(0)), func([]byte) {})
	require.True(t, done)
	require.ErrorIs(t, err, errInterrupted)
}

// FuzzNetlink reads arbitrary bytes as an answer of the kernel.
func FuzzNetlink(f *testing.F) {
	device := message(nldevGet, unix.NLM_F_MULTI, 0, rxeAttrs())
	f.Add(device)
	f.Add(append(device, message(unix.NLMSG_DONE, 0, 0, errnoBody(0))...))
	f.Add(message(nldevChardev, 0, 0, chardevAttrs()))
	f.Add(message(nldevPortGet, 0, 0, appendAttr(nil, nldevNetdevName, []byte("dummy0\x00"))))
	f.Fuzz(func(t *testing.T, b []byte) {
		left := len(b)
		var r netlinkReply
		_, err := r.take(b, func(attrs []byte) {
			left -= unix.NLMSG_HDRLEN + len(attrs)
			require.GreaterOrEqual(t, left, 0, "messages overlap or lie outside")
			d, ok := parseDevice(attrs)
			if ok {
				require.True(t, isFileName(d.Name))
				require.LessOrEqual(t, d.Ports, 255)
			}
			d.parseChardev(attrs)
			require.True(t, d.Node == "" || isFileName(d.Node))
			netdev := parseNetdev(attrs)
			require.True(t, netdev == "" || isFileName(netdev))
		})
		if err != nil {
			require.NotEmpty(t, err.Error())
		}
	})
}
