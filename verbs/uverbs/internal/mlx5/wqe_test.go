//go:build amd64 || arm64

package mlx5

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
	"github.com/stretchr/testify/require"
)

// The segments are those of mlx5dv.h of rdma-core.
func TestRequestsAreEncodedAsTheDeviceReadsThem(t *testing.T) {
	for _, c := range []struct {
		name string
		typ  verbs.QPType
		wr   verbs.SendWR
		want string
	}{
		{"SEND", verbs.QPTypeRC, verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled | verbs.SendSolicited, SGL: sgl(16, 0, 32)},
			"0000000a 12345603 0000000a 00000000" + "00000010 00000007 00000001 00000000" + "00000020 00000207 00000003 00000000"},
		{"SEND of nothing with immediate", verbs.QPTypeRC, verbs.SendWR{Opcode: verbs.OpSendWithImm, Imm: 0x01020304},
			"0000000b 12345601 00000000 01020304"},
		{"fenced inline WRITE", verbs.QPTypeRC, verbs.SendWR{Opcode: verbs.OpWrite, Flags: verbs.SendInline | verbs.SendFence,
			Inline: [][]byte{{1, 2}, nil, {3}}, RemoteAddr: 0x1122334455667788, RKey: 0xaabbccdd},
			"00000008 12345603 00000080 00000000" + "11223344 55667788 aabbccdd 00000000" + "80000003 01020300 00000000 00000000"},
		{"WRITE with immediate", verbs.QPTypeUC, verbs.SendWR{Opcode: verbs.OpWriteWithImm, Imm: 9, RemoteAddr: 1, RKey: 2, SGL: sgl(1)},
			"00000009 12345603 00000000 00000009" + "00000000 00000001 00000002 00000000" + "00000001 00000007 00000001 00000000"},
		{"READ", verbs.QPTypeRC, verbs.SendWR{Opcode: verbs.OpRead, RemoteAddr: 1, RKey: 2, SGL: sgl(1)},
			"00000010 12345603 00000000 00000000" + "00000000 00000001 00000002 00000000" + "00000001 00000007 00000001 00000000"},
		{"CMP_AND_SWP", verbs.QPTypeRC, verbs.SendWR{Opcode: verbs.OpCompareSwap, RemoteAddr: 8, RKey: 2, CompareAdd: 3, Swap: 4, SGL: sgl(8)},
			"00000011 12345604 00000000 00000000" + "00000000 00000008 00000002 00000000" + "00000000 00000004 00000000 00000003" +
				"00000008 00000007 00000001 00000000"},
		{"FETCH_AND_ADD", verbs.QPTypeRC, verbs.SendWR{Opcode: verbs.OpFetchAdd, RemoteAddr: 8, RKey: 2, CompareAdd: 3, SGL: sgl(8)},
			"00000012 12345604 00000000 00000000" + "00000000 00000008 00000002 00000000" + "00000000 00000003 00000000 00000000" +
				"00000008 00000007 00000001 00000000"},
		{"SEND_WITH_INV", verbs.QPTypeRC, verbs.SendWR{Opcode: verbs.OpSendWithInv, InvalidateRKey: 0x01020304, SGL: sgl(1)},
			"00000001 12345602 00000000 01020304" + "00000001 00000007 00000001 00000000"},
		{"SEND of XRC", verbs.QPTypeXRCInitiator, verbs.SendWR{Opcode: verbs.OpSendWithImm, Imm: 5, RemoteSRQ: 0xabcdef, SGL: sgl(1)},
			"0000000b 12345603 00000000 00000005" + "00abcdef 00000000 00000000 00000000" + "00000001 00000007 00000001 00000000"},
		{"inline WRITE of XRC", verbs.QPTypeXRCInitiator, verbs.SendWR{Opcode: verbs.OpWrite, Flags: verbs.SendInline, Inline: [][]byte{{7}},
			RemoteSRQ: 3, RemoteAddr: 1, RKey: 2},
			"00000008 12345604 00000000 00000000" + "00000003 00000000 00000000 00000000" + "00000000 00000001 00000002 00000000" +
				"80000001 07000000 00000000 00000000"},
		{"READ of XRC", verbs.QPTypeXRCInitiator, verbs.SendWR{Opcode: verbs.OpRead, RemoteSRQ: 3, RemoteAddr: 1, RKey: 2, SGL: sgl(1)},
			"00000010 12345604 00000000 00000000" + "00000003 00000000 00000000 00000000" + "00000000 00000001 00000002 00000000" +
				"00000001 00000007 00000001 00000000"},
		{"CMP_AND_SWP of XRC", verbs.QPTypeXRCInitiator, verbs.SendWR{Opcode: verbs.OpCompareSwap, RemoteSRQ: 3, RemoteAddr: 8, RKey: 2, CompareAdd: 5,
			Swap: 4, SGL: sgl(8)},
			"00000011 12345605 00000000 00000000" + "00000003 00000000 00000000 00000000" + "00000000 00000008 00000002 00000000" +
				"00000000 00000004 00000000 00000005" + "00000008 00000007 00000001 00000000"},
		{"FETCH_AND_ADD of XRC", verbs.QPTypeXRCInitiator, verbs.SendWR{Opcode: verbs.OpFetchAdd, RemoteSRQ: 3, RemoteAddr: 8, RKey: 2, CompareAdd: 5,
			SGL: sgl(8)},
			"00000012 12345605 00000000 00000000" + "00000003 00000000 00000000 00000000" + "00000000 00000008 00000002 00000000" +
				"00000000 00000005 00000000 00000000" + "00000008 00000007 00000001 00000000"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, _ := newContext(t)
			q := newQP(t, ctx, driver.QPAttr{Type: c.typ, Cap: size})
			for i := range q.send.mem {
				q.send.mem[i] = 0xee // what was there before must not show
			}
			n, doorbell, err := q.PostSend([]verbs.SendWR{c.wr})
			require.NoError(t, err)
			require.Equal(t, 1, n)
			require.False(t, doorbell, "the driver rings by itself")
			want, err := hex.DecodeString(strings.ReplaceAll(c.want, " ", ""))
			require.NoError(t, err)
			require.Equal(t, want, q.send.mem[:len(want)])
			require.EqualValues(t, (len(want)+blockSize-1)/blockSize, bits.ReverseBytes32(q.record[1]), "blocks")
			require.Equal(t, len(want), q.WQEBytes(&c.wr))
			require.Equal(t, *abi.ViewAt[uint64](q.send.mem, 0), *abi.ViewAt[uint64](ctx.uars[1], firstBfreg+2*512), "bfreg 6 has the first bytes")
		})
	}
}

// Most requests are written in one loop that knows of little. It writes what is
// written for any request.
func TestSmallRequestsAreWrittenAsAllAre(t *testing.T) {
	ctx, _ := newContext(t)
	attr := driver.QPAttr{Type: verbs.QPTypeRC, Cap: verbs.QPCap{MaxSendWR: 64, MaxSendSGE: 3, MaxInline: 100}, SendCQ: newCQ(t, ctx, 8)}
	random := rand.New(rand.NewPCG(1, 2))
	small := 0
	for _, typ := range []verbs.QPType{verbs.QPTypeRC, verbs.QPTypeUC} {
		attr.Type = typ
		quick, any := newQP(t, ctx, attr), newQP(t, ctx, attr)
		for i := range 5000 {
			for _, q := range []*qp{quick, any} {
				q.send.blocks[uint32(i)&q.send.mask] = block(bytes.Repeat([]byte{0xee}, blockSize))
				q.send.marks = i%50 == 0
				q.send.marking = false
			}
			wr := verbs.SendWR{
				ID: random.Uint64(), Opcode: verbs.Opcode(random.IntN(16)), Flags: verbs.SendFlags(random.IntN(int(knownFlags) + 1)),
				Imm: random.Uint32(), InvalidateRKey: random.Uint32(), RemoteAddr: random.Uint64(), RKey: random.Uint32(),
			}
			for range random.IntN(3) {
				wr.SGL = append(wr.SGL, verbs.SGE{Addr: random.Uint64(), LKey: random.Uint32(), Length: random.Uint32N(4) << random.Uint32N(32)})
				piece := make([]byte, random.IntN(50))
				for j := range piece {
					piece[j] = byte(random.Uint32())
				}
				wr.Inline = append(wr.Inline, piece)
			}
			n, w := quick.writeSmall(uint32(i), []verbs.SendWR{wr})
			if n == 0 {
				continue
			}
			small++
			same, err := any.write(uint32(i), &wr)
			require.NoError(t, err)
			require.Equal(t, same, w)
			at := uint32(i) & quick.send.mask
			require.Equal(t, any.send.blocks[at], quick.send.blocks[at], "%+v", wr)
			require.Equal(t, any.send.requests[at], quick.send.requests[at])
			require.Equal(t, any.send.count, quick.send.count)
			require.Equal(t, any.send.silent, quick.send.silent)
		}
	}
	require.Greater(t, small, 1000)
}

// The bytes are libmlx5's (rdma-core 44.0), as a model printed them, for a QP
// with the number 0x107.
func TestKeysAreChangedAsTheCLibraryChangesThem(t *testing.T) {
	const rights = verbs.AccessRemoteWrite | verbs.AccessRemoteRead
	zeros := func(n int) string { return strings.Repeat("00", n) }
	for name, c := range map[string]struct {
		key  keyContext
		want string
	}{
		"BIND_MW of type 2": {
			keyContext{typ: verbs.MWType2, variant: 0xa9, qpn: 0x107, addr: 0x55c45f43c400, length: 0x400, access: rights, lkey: 0x104d4},
			"b0000000 00040000 00000000203c6041" + zeros(32) +
				"00003000 000107a9" + zeros(8) + "000055c45f43c400 0000000000000400" + zeros(32) +
				"00000400 000104d4 000055c45f43c400" + zeros(48)},
		"LOCAL_INV": {
			keyContext{typ: verbs.MWType2, qpn: anyQP},
			"98000000 00000000 0000000020006000" + zeros(32) + "40000000 ffffff00" + zeros(56)},
		"BIND_MW of type 1": {
			keyContext{typ: verbs.MWType1, variant: 0xde, qpn: anyQP, addr: 0x55c45f43c800, length: 0x200,
				access: verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic, lkey: 0x104d4},
			"90000000 00040000 00000000203c2041" + zeros(32) +
				"00006000 ffffffde" + zeros(8) + "000055c45f43c800 0000000000000200" + zeros(32) +
				"00000200 000104d4 000055c45f43c800" + zeros(48)},
		"BIND_MW of type 1, empty": {
			keyContext{typ: verbs.MWType1, variant: 0xdf, qpn: anyQP},
			"90000000 00000000 0000000020002000" + zeros(32) + "40000000 ffffffdf" + zeros(56)},
	} {
		t.Run(name, func(t *testing.T) {
			size := binding
			if c.key.length == 0 {
				size = invalidation
			}
			b := bytes.Repeat([]byte{0xee}, size-segmentSize)
			putKey(b, &c.key)
			require.Equal(t, strings.ReplaceAll(c.want, " ", ""), hex.EncodeToString(b))
		})
	}
}

// A request may use the key that the one before it has changed.
func TestTheRequestBehindAKeyChangeIsFenced(t *testing.T) {
	ctx, _ := newContext(t)
	c := newCQ(t, ctx, 8)
	q := newQP(t, ctx, driver.QPAttr{Type: verbs.QPTypeRC, Cap: verbs.QPCap{MaxSendWR: 8}, SendCQ: c})
	invalidate := verbs.SendWR{ID: 1, Opcode: verbs.OpLocalInv, InvalidateRKey: 0x01020304}
	var flags []byte
	for _, wrs := range [][]verbs.SendWR{{{Opcode: verbs.OpSend}, invalidate}, {invalidate, {Opcode: verbs.OpSend, Flags: verbs.SendFence}},
		{{Opcode: verbs.OpSend}, invalidate, {Opcode: verbs.OpWrite}}} {
		at := q.send.posted.Load()
		n, _, err := q.PostSend(wrs)
		require.NoError(t, err)
		require.Len(t, wrs, n)
		for ; at != q.send.posted.Load(); at += q.send.requests[at].blocks() {
			wqe := q.send.mem[at*blockSize:]
			if wqe[3] == opUMR {
				require.Equal(t, []byte{0x12, 0x34, 0x56, invalidation / segmentSize}, wqe[4:8])
				require.EqualValues(t, 0x01020304, be.Uint32(wqe[ctrlImm:]))
			}
			flags = append(flags, wqe[ctrlFlags]&^flagSignaled)
		}
	}
	require.Equal(t, []byte{0, 0, flagAfterUMR, flagFence, 0, 0, flagAfterUMR}, flags)
	device(c, 0, cqeRequest, 1, nil)
	var wcs [2]verbs.WC
	n, err := c.Poll(wcs[:], one{q})
	require.NoError(t, err)
	require.Equal(t, []verbs.WC{{ID: 1, QPN: qpn, Opcode: verbs.WCLocalInv}}, wcs[:n])
}

// The address is struct mlx5_wqe_av of mlx5dv.h, as mlx5_create_ah of rdma-core fills
// it in.
func TestAddressesAreEncodedAsTheDeviceReadsThem(t *testing.T) {
	mac := [6]uint8{2, 3, 4, 5, 6, 7}
	global := verbs.AddressVector{
		DGID: verbs.GID{0xfe, 15: 0x99}, SGIDIndex: 3, FlowLabel: 0x12345, HopLimit: 64, TrafficClass: 0x20,
		DLID: 0x1122, SL: 5, SrcPathBits: 6, IsGlobal: true,
	}
	route := "2040 %s fe000000000000000000000000000099"
	ethernet, infiniBand := fmt.Sprintf(route, "00312345"), fmt.Sprintf(route, "40312345")
	for _, c := range []struct {
		name     string
		rate     uint8
		ethernet bool
		change   func(av *verbs.AddressVector)
		want     string
	}{
		{"Ethernet", 0, true, nil, "0a00 e341 00000000 020304050607" + ethernet},
		{"Ethernet, SL of four bits", 0, true, func(av *verbs.AddressVector) { av.SL = 15 }, "0e00 e341 00000000 020304050607" + ethernet},
		{"Ethernet, 14 Gbit/s", 11, true, nil, "ba00 e341 00000000 020304050607" + ethernet},
		{"InfiniBand", 0, false, nil, "0506 1122 00000000 000000000000" + infiniBand},
		{"InfiniBand, 2.5 Gbit/s", 2, false, nil, "7506 1122 00000000 000000000000" + infiniBand},
		{"InfiniBand, 10 Gbit/s", 3, false, nil, "8506 1122 00000000 000000000000" + infiniBand},
		{"InfiniBand, 120 Gbit/s", 10, false, nil, "f506 1122 00000000 000000000000" + infiniBand},
		{"InfiniBand, 14 Gbit/s", 11, false, nil, "b506 1122 00000000 000000000000" + infiniBand},
		{"InfiniBand, 100 Gbit/s", 16, false, nil, "f506 1122 00000000 000000000000" + infiniBand},
		{"InfiniBand, 400 Gbit/s", 21, false, nil, "0506 1122 00000000 000000000000" + infiniBand},
		{"InfiniBand, no rate", 200, false, nil, "0506 1122 00000000 000000000000" + infiniBand},
		{"InfiniBand, one subnet", 0, false, func(av *verbs.AddressVector) { av.IsGlobal = false },
			"0506 1122 00000000 000000000000 0000 00000000" + strings.Repeat("00", 16)},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, _ := newContext(t)
			av := global
			av.StaticRate = c.rate
			if c.change != nil {
				c.change(&av)
			}
			made, err := ctx.CreateAH(&av, func(u driver.Udata) error {
				if c.ethernet {
					*abi.ViewAt[createAHOut](u.Out, 0) = createAHOut{responseLength: 10, dmac: mac}
				}
				return nil
			})
			require.NoError(t, err)
			want, err := hex.DecodeString(strings.ReplaceAll(c.want, " ", ""))
			require.NoError(t, err)
			require.Equal(t, hex.EncodeToString(want), hex.EncodeToString(made.(*path)[:]))
		})
	}
}

func TestAddressesWithoutAFlowHavePortsOfTheirOwn(t *testing.T) {
	ctx, _ := newContext(t)
	ports := map[uint16]bool{}
	for range 20 {
		made, err := ctx.CreateAH(&verbs.AddressVector{IsGlobal: true}, func(u driver.Udata) error {
			*abi.ViewAt[createAHOut](u.Out, 0) = createAHOut{responseLength: 10}
			return nil
		})
		require.NoError(t, err)
		port := be.Uint16(made.(*path)[2:])
		require.GreaterOrEqual(t, port, uint16(0xc000))
		ports[port] = true
	}
	require.Greater(t, len(ports), 10)
}

// On Ethernet there are no LIDs, and the place of the service level tells the version of RoCE
// (handle_responder of hw/mlx5/cq.c).
func TestADatagramHasLIDsAndAServiceLevelOnInfiniBandAlone(t *testing.T) {
	for transport, want := range map[verbs.Transport]verbs.WC{
		verbs.TransportIB:   {QPN: qpn, Opcode: verbs.WCRecv, Flags: verbs.WCGRH, SrcQPN: 0x206, SL: 2, SLID: 7, PathBits: 1},
		verbs.TransportRoCE: {QPN: qpn, Opcode: verbs.WCRecv, Flags: verbs.WCGRH, SrcQPN: 0x206},
	} {
		ctx, _ := newContext(t)
		attr := verbs.DeviceAttr{DeviceInfo: verbs.DeviceInfo{Transport: transport}, MaxCQE: 1 << 10}
		ctx.Describe(&attr)
		c := newCQ(t, ctx, 8)
		q := newQP(t, ctx, driver.QPAttr{Type: verbs.QPTypeUD, Cap: size})
		_, err := q.PostRecv([]verbs.RecvWR{{SGL: sgl(100)}})
		require.NoError(t, err)
		device(c, 0, cqeRecv, 0, func(cqe []byte) {
			be.PutUint32(cqe[cqeFlagsRQPN:], 1<<28|2<<24|0x206) // RoCE v2
			be.PutUint16(cqe[cqeSLID:], 7)
			cqe[cqePathBits] = 1
		})
		var wcs [1]verbs.WC
		n, err := c.Poll(wcs[:], one{q})
		require.NoError(t, err)
		require.Equal(t, []verbs.WC{want}, wcs[:n], "%v", transport)
	}
}

func TestReceivesEndWhereTheirListEnds(t *testing.T) {
	ctx, _ := newContext(t)
	c := newCQ(t, ctx, 8)
	q := newQP(t, ctx, driver.QPAttr{Type: verbs.QPTypeRC, Cap: size})
	n, err := q.PostRecv([]verbs.RecvWR{{ID: 1, SGL: sgl(5, 6)}, {ID: 2, SGL: sgl(0, 7)}, {ID: 3}})
	require.NoError(t, err)
	require.Equal(t, 3, n)
	require.EqualValues(t, 3, bits.ReverseBytes32(q.record[0]))
	want, _ := hex.DecodeString("00000005000000070000000100000000" + "00000006000001070000000200000000" +
		"00000007000001070000000200000000" + "00000000000001000000000000000000" + "00000000000001000000000000000000")
	require.Equal(t, want, q.recv.mem[:len(want)])
	for _, tooMuch := range [][]verbs.SGE{sgl(1, 1, 1), sgl(maxMessage, 1), sgl(1<<31 + 1)} {
		_, err = q.PostRecv([]verbs.RecvWR{{SGL: tooMuch}})
		require.ErrorIs(t, err, verbs.ErrInvalid)
	}
	device(c, 0, cqeRecvImm, 0, func(cqe []byte) {
		be.PutUint32(cqe[cqeImm:], 0x01020304)
		be.PutUint32(cqe[cqeBytes:], 11)
		be.PutUint64(cqe[cqeTimestamp:], 1<<60)
	})
	device(c, 1, cqeResponseError, 1, func(cqe []byte) { cqe[cqeSyndrome], cqe[cqeVendor] = 0x01, 0x32 })
	device(c, 2, cqeRecv, 7, nil) // of the time before a RESET
	var wcs [4]verbs.WC
	n, err = c.Poll(wcs[:], one{q})
	require.NoError(t, err)
	require.Equal(t, []verbs.WC{
		{ID: 1, QPN: qpn, Opcode: verbs.WCRecv, Flags: verbs.WCWithImm, Imm: 0x01020304, ByteLen: 11, Timestamp: 1 << 60},
		{ID: 2, QPN: qpn, Opcode: verbs.WCRecv, Status: verbs.WCLocLenErr, VendorErr: 0x32},
	}, wcs[:n])
}
