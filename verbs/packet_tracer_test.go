package verbs

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"iter"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPacketsOfIPv4AddressesHaveItsHeader(t *testing.T) {
	from := GID(netip.MustParseAddr("::ffff:192.168.0.1").As16())
	to := AddressVector{DGID: netip.MustParseAddr("::ffff:192.168.0.199").As16(), HopLimit: 64}
	require.Equal(t, "45000073000040004011b861c0a80001c0a800c7", hex.EncodeToString(ipHeader(from, &to, 0x73-20)),
		"the example of en.wikipedia.org/wiki/Internet_checksum")
}

// The packets of a datagram come from the address of its AH, not from that of the QP.
func TestPacketsOfADatagramComeFromItsAH(t *testing.T) {
	drv := twoPorts{gids: []GIDEntry{
		{GID: GID{15: 1}, Index: 0, Port: 1}, {GID: GID{15: 2}, Index: 3, Port: 1}, {GID: GID{15: 3}, Index: 3, Port: 2},
	}}
	qp := &QP{ctx: &Context{drv: drv}}
	f := &flow{sources: make(map[source]GID)}
	for range 2 {
		require.Equal(t, GID{15: 1}, f.from(qp, 0, &AddressVector{}))
		require.Equal(t, GID{15: 2}, f.from(qp, 1, &AddressVector{SGIDIndex: 3}))
		require.Equal(t, GID{15: 3}, f.from(qp, 2, &AddressVector{SGIDIndex: 3}))
		require.Zero(t, f.from(qp, 2, &AddressVector{}))
	}
}

// twoPorts is the GID table of a device with two ports, which no device has that is here.
type twoPorts struct {
	ContextDriver
	gids []GIDEntry
}

func (p twoPorts) QueryGIDs(port uint8) (gids []GIDEntry, err error) {
	for _, g := range p.gids {
		if g.Port == port {
			gids = append(gids, g)
		}
	}
	return gids, nil
}

// rxe and hardware answer a query with the packet number of the next request.
func TestTheFirstPacketNumberIsNotAskedForAfterThePost(t *testing.T) {
	for _, late := range []bool{false, true} {
		drv := &countingQP{attr: QPAttr{State: QPStateRTR}}
		ctx := &Context{drv: twoPorts{}}
		qp := &QP{ctx: ctx, drv: drv, attr: QPInitAttr{Type: QPTypeUC}, plain: plainOperations(QPTypeUC, 0)}
		var file bytes.Buffer
		set := func() { ctx.SetTracer(NewPacketTracer(&file)) }
		if !late {
			set()
		}
		require.NoError(t, qp.Modify(QPAttr{State: QPStateRTS, SQPSN: 0xffffff}, QPAttrState|QPAttrSQPSN))
		if late {
			_, err := qp.PostSend([]SendWR{{Opcode: OpSend}})
			require.NoError(t, err)
			set()
		}
		_, err := qp.PostSend([]SendWR{{Opcode: OpSend}, {Opcode: OpSend}})
		require.NoError(t, err)
		want := []uint32{0xffffff, 0}
		if late {
			want = []uint32{0, 1}
		}
		require.Equal(t, want, numbersOf(file.Bytes()), "tracer set late: %v", late)
	}
}

// What was posted while the tracer was away is counted by the device alone.
func TestATracerThatIsSetAgainAsksForThePacketNumber(t *testing.T) {
	ctx := &Context{drv: twoPorts{}}
	qp := &QP{ctx: ctx, drv: &countingQP{attr: QPAttr{State: QPStateRTS}}, attr: QPInitAttr{Type: QPTypeUC}, plain: plainOperations(QPTypeUC, 0)}
	var file bytes.Buffer
	tracer := NewPacketTracer(&file)
	for _, set := range []*Tracer{tracer, nil, tracer} {
		ctx.SetTracer(set)
		_, err := qp.PostSend([]SendWR{{Opcode: OpSend}})
		require.NoError(t, err)
	}
	require.Equal(t, []uint32{0, 2}, numbersOf(file.Bytes()))
}

// numbersOf returns the packet numbers of a file, behind the headers of the block, IPv6 and UDP.
func numbersOf(file []byte) (psns []uint32) {
	for b := range blocks(file) {
		psns = append(psns, binary.BigEndian.Uint32(b[28+40+8+8:]))
	}
	return psns
}

// blocks are those of the packets of a file.
func blocks(file []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for b := file; len(b) > 0; b = b[binary.LittleEndian.Uint32(b[4:]):] {
			if binary.LittleEndian.Uint32(b) == blockPacket && !yield(b) {
				return
			}
		}
	}
}

// countingQP numbers its requests, of a packet each.
type countingQP struct {
	QPDriver
	attr QPAttr
}

func (q *countingQP) Query() (QPAttr, error) { return q.attr, nil }

func (q *countingQP) Modify(attr *QPAttr, mask QPAttrMask) error {
	q.attr = *attr
	return nil
}

func (q *countingQP) PostSend(wrs []SendWR) (int, error) {
	q.attr.SQPSN = (q.attr.SQPSN + uint32(len(wrs))) & 0xffffff
	return len(wrs), nil
}
