package rcm

import (
	"encoding/binary"
	"testing"

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
