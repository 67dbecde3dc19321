//go:build amd64 || arm64

package mlx5

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
)

// hostMemory is memory for a driver without a device.
type hostMemory struct{ used int }

func (m *hostMemory) Map(_ uint64, size int, _ driver.Protection) ([]byte, error) {
	m.used++
	return make([]byte, size), nil
}

func (m *hostMemory) Alloc(size int) ([]byte, error) {
	m.used++
	return make([]byte, size), nil
}

func (m *hostMemory) Unmap([]byte) { m.used-- }

func newContext(t testing.TB) (*context, *hostMemory) {
	t.Helper()
	return newContextOf(t, Driver{})
}

func newContextOf(t testing.TB, of Driver) (*context, *hostMemory) {
	t.Helper()
	mem := new(hostMemory)
	d, err := of.Open(mem, kernelThatSays(512, 16))
	require.NoError(t, err)
	return d.(*context), mem
}

// kernelThatSays answers Open.
func kernelThatSays(bfregSize, bfregs uint32) func(driver.Udata) error {
	return func(u driver.Udata) error {
		*abi.ViewAt[contextOut](u.Out, 0) = contextOut{
			bfRegSize: bfregSize, totBfregs: bfregs, maxSendWQE: 512, maxRecvWQE: 512, maxSendBlocks: 1 << 15, maxRecvWR: 1 << 15,
			logUARSize: 12, uarsPerPage: 1,
		}
		return nil
	}
}

func TestBfregsAreWhereTheirDoorbellsFit(t *testing.T) {
	for _, c := range []struct {
		size, count uint32
		fits        bool
	}{
		{512, 16, true}, {512, 2, true}, {16, 16, true}, {64, 1 << 10, true},
		{0, 16, false}, {1, 16, false}, {8, 16, false}, {24, 16, false}, {500, 16, false}, {1024, 16, false}, {1 << 31, 16, false},
		{512, 0, false}, {512, 1, false}, {512, 1<<10 + 1, false}, {512, 1<<32 - 1, false},
	} {
		for _, of := range []Driver{{}, {BlueFlame: true}} {
			t.Run(fmt.Sprintf("%d of %d bytes, %+v", c.count, c.size, of), func(t *testing.T) {
				mem := new(hostMemory)
				d, err := of.Open(mem, kernelThatSays(c.size, c.count))
				if !c.fits {
					require.ErrorIs(t, err, verbs.ErrUnsupported)
					require.Zero(t, mem.used)
					return
				}
				require.NoError(t, err)
				ctx := d.(*context)
				require.EqualValues(t, c.count/2, mem.used, "a page is mapped once")
				newCQ(t, ctx, 8).Arm(false)
				q := newQPAt(t, ctx, 2*c.count-1, driver.QPAttr{Type: verbs.QPTypeRC, Cap: size}) // the last
				n, _, err := q.PostSend([]verbs.SendWR{{Opcode: verbs.OpWrite}})
				require.NoError(t, err)
				require.Equal(t, 1, n)
				last := ctx.uars[c.count/2-1][firstBfreg+3*c.size:][:c.size]
				require.Equal(t, q.send.mem[:8], last[:8])
			})
		}
	}
}

const qpn = 0x123456

func newQPAt(t testing.TB, c *context, bfreg uint32, attr driver.QPAttr) *qp {
	t.Helper()
	q, err := c.CreateQP(&attr, func(u driver.Udata) (driver.CreatedQP, error) {
		abi.ViewAt[createQPOut](u.Out, 0).bfregIndex = bfreg
		return driver.CreatedQP{Num: qpn, Cap: attr.Cap}, nil
	})
	require.NoError(t, err)
	return q.(*qp)
}

func newQP(t testing.TB, c *context, attr driver.QPAttr) *qp {
	t.Helper()
	return newQPAt(t, c, 6, attr)
}

func newCQ(t testing.TB, c *context, cqe int) *cq {
	t.Helper()
	q, err := c.CreateCQ(cqe, func(entries int, u driver.Udata) error {
		require.GreaterOrEqual(t, entries, cqe+minReserved)
		abi.ViewAt[createCQOut](u.Out, 0).cqn = 0xabc
		return nil
	})
	require.NoError(t, err)
	return q.(*cq)
}

// A kernel makes CQs of powers of two up to what it advertises and one
// (mlx5_ib_create_cq).
func TestTheLargestCQThatIsAdvertisedCanBeMade(t *testing.T) {
	for _, kernel := range []int{0, 63, 127, 1<<10 - 1, 1 << 10, 1<<22 - 1, 1<<24 - 1} {
		t.Run(strconv.Itoa(kernel), func(t *testing.T) {
			ctx, _ := newContext(t)
			attr := verbs.DeviceAttr{MaxCQE: kernel}
			ctx.Describe(&attr)
			if kernel <= minReserved {
				require.Zero(t, attr.MaxCQE)
				return
			}
			require.Positive(t, attr.MaxCQE)
			made, err := ctx.CreateCQ(attr.MaxCQE, func(entries int, _ driver.Udata) error {
				require.LessOrEqual(t, entries, kernel)
				require.LessOrEqual(t, roundUp(entries+1), kernel+1)
				return nil
			})
			require.NoError(t, err)
			require.Equal(t, attr.MaxCQE, made.(*cq).Capacity())
			_, err = ctx.CreateCQ(maxEntries-minReserved, func(int, driver.Udata) error { t.Fatal("larger than any"); return nil })
			require.ErrorIs(t, err, verbs.ErrInvalid)
		})
	}
}

// one is a table of one QP.
type one struct{ *qp }

func (o one) Find(num uint32) driver.QP {
	if num != o.number {
		return nil
	}
	return o.qp
}

// device writes CQE i.
func device(c *cq, i uint32, opcode byte, index uint16, set func(cqe []byte)) {
	cqe := c.mem[int(i&c.mask)*cqeSize:][:cqeSize]
	clear(cqe)
	be.PutUint32(cqe[cqeOpQPN:], qpn)
	if set != nil {
		set(cqe)
	}
	be.PutUint16(cqe[cqeLast:], index)
	cqe[cqeSize-1] = opcode<<4 | byte(i/(c.mask+1)&1)
}

var size = verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: 64}

func sgl(lengths ...uint32) []verbs.SGE {
	list := make([]verbs.SGE, len(lengths))
	for i, n := range lengths {
		list[i] = verbs.SGE{Addr: uint64(i+1) << 32, Length: n, LKey: uint32(0x100*i + 7)}
	}
	return list
}

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

// The bytes are libmlx5's (rdma-core 44.0), as a model printed them, for a QP with the number 0x107.
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

// A request that is posted alone goes to the halves of the register by turns, whole if there is room for it there,
// it does not go over the end of the queue, and it is more than the first segment. Of others the register gets the first
// eight bytes.
func TestBlueFlameHasTheWQEsThatAreInTheQueue(t *testing.T) {
	ctx, mem := newContextOf(t, Driver{BlueFlame: true})
	q := newQP(t, ctx, driver.QPAttr{Type: verbs.QPTypeRC, Cap: verbs.QPCap{MaxSendWR: 8, MaxSendSGE: 1, MaxInline: 256}})
	register := ctx.uars[1][firstBfreg+2*512:][:512] // that of bfreg 6
	whole, overTheEnd := 0, 0
	for i := range 40 {
		wrs := make([]verbs.SendWR, 1+i%7/6)
		for j := range wrs {
			wrs[j] = verbs.SendWR{Opcode: verbs.OpWrite, Flags: verbs.SendInline, Inline: [][]byte{bytes.Repeat([]byte{byte(i)}, 11*i%256)}}
		}
		if i%10 == 0 {
			wrs[0] = verbs.SendWR{Opcode: verbs.OpSend}
		}
		for k := range register {
			register[k] = 0xee
		}
		n, _, err := q.PostSend(wrs)
		require.NoError(t, err)
		require.Equal(t, len(wrs), n)
		posted := q.send.posted.Load()
		require.EqualValues(t, posted&0xffff, bits.ReverseBytes32(q.record[1]), "before the register is written")
		begin := int(q.send.last&q.send.mask) * blockSize
		size := int(posted-q.send.last) * blockSize
		half, other := register[i%2*256:][:256], register[(i+1)%2*256:][:256]
		written := 8
		if over := begin+size > len(q.send.mem); n == 1 && !over && size <= 256 && i%10 != 0 {
			written = size
			whole++
		} else if over {
			overTheEnd++
		}
		require.Equal(t, q.send.mem[begin:][:written], half[:written])
		require.Equal(t, bytes.Repeat([]byte{0xee}, 256-written), half[written:])
		require.Equal(t, bytes.Repeat([]byte{0xee}, 256), other)
		q.send.done.Store(posted)
	}
	require.Greater(t, whole, 20)
	require.NotZero(t, overTheEnd)
	ctx.Close()
	q.Unmap()
	require.Zero(t, mem.used)
}

func TestBlueFlameLeavesTheFirstRegisterToDoorbells(t *testing.T) {
	ctx, _ := newContextOf(t, Driver{BlueFlame: true})
	q := newQPAt(t, ctx, 0, driver.QPAttr{Type: verbs.QPTypeRC, Cap: size})
	for range 4 {
		register := ctx.uars[0][firstBfreg:][:512]
		clear(register)
		n, _, err := q.PostSend([]verbs.SendWR{{Opcode: verbs.OpWrite}})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, q.send.mem[q.send.last*blockSize:][:8], register[:8])
		require.Equal(t, make([]byte, 504), register[8:])
	}
}

func TestRequestsGoRoundTheEndOfTheQueue(t *testing.T) {
	ctx, _ := newContext(t)
	c := newCQ(t, ctx, 8)
	q := newQP(t, ctx, driver.QPAttr{Type: verbs.QPTypeRC, Cap: verbs.QPCap{MaxSendWR: 5, MaxInline: 200}, SignalAll: true})
	for i := range uint64(100) {
		data := make([]byte, 50+i)
		for j := range data {
			data[j] = byte(i + 1)
		}
		first := q.send.posted.Load()
		n, _, err := q.PostSend([]verbs.SendWR{{ID: i, Opcode: verbs.OpSend, Flags: verbs.SendInline, Inline: [][]byte{data}}})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		ring := append(append([]byte{}, q.send.mem[int(first&q.send.mask)*blockSize:]...), q.send.mem...)
		require.Equal(t, data, ring[segmentSize+4:][:len(data)])
		device(c, uint32(i), cqeRequest, uint16(first), nil)
		var wcs [2]verbs.WC
		n, err = c.Poll(wcs[:], one{q})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, verbs.WC{ID: i, QPN: qpn}, wcs[0])
		require.EqualValues(t, i+1, bits.ReverseBytes32(c.record[0]))
	}
}

func TestACompletionFreesTheRequestsBeforeIt(t *testing.T) {
	ctx, _ := newContext(t)
	c := newCQ(t, ctx, 8)
	q := newQP(t, ctx, driver.QPAttr{Type: verbs.QPTypeRC, Cap: verbs.QPCap{MaxSendWR: 8}})
	wrs := make([]verbs.SendWR, 9)
	for i := range wrs {
		wrs[i] = verbs.SendWR{ID: uint64(i), Opcode: verbs.OpSend}
	}
	wrs[5].Flags = verbs.SendSignaled
	n, _, err := q.PostSend(wrs)
	require.ErrorIs(t, err, verbs.ErrQueueFull)
	require.Equal(t, 8, n)
	device(c, 0, cqeRequest, 5, nil)
	var wcs [4]verbs.WC
	n, err = c.Poll(wcs[:], one{q})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.EqualValues(t, 5, wcs[0].ID)
	n, _, err = q.PostSend(wrs)
	require.ErrorIs(t, err, verbs.ErrQueueFull)
	require.Equal(t, 6, n)
}

// When a QP fails all its requests complete, and its CQ may have room for as many as it was made for.
func TestAQueueTakesNoMoreRequestsThanItWasMadeForHoweverSmall(t *testing.T) {
	ctx, _ := newContext(t)
	q := newQP(t, ctx, driver.QPAttr{Type: verbs.QPTypeRC, Cap: verbs.QPCap{MaxSendWR: 8, MaxInline: 200}, SendCQ: newCQ(t, ctx, 8)})
	wrs := make([]verbs.SendWR, 9)
	for i := range wrs {
		wrs[i].Opcode = verbs.OpSend
	}
	n, _, err := q.PostSend(wrs)
	require.ErrorIs(t, err, verbs.ErrQueueFull)
	require.Equal(t, 8, n)
}

func TestAMarkedRequestFreesTheQueueAndIsNotSeen(t *testing.T) {
	ctx, _ := newContext(t)
	c := newCQ(t, ctx, 8)
	q := newQP(t, ctx, driver.QPAttr{Type: verbs.QPTypeRC, Cap: verbs.QPCap{MaxSendWR: 8}, SendCQ: c})
	n, _, err := q.PostSend(make([]verbs.SendWR, 0))
	require.NoError(t, err)
	require.Zero(t, n)
	for i := range uint64(100) {
		n, _, err := q.PostSend([]verbs.SendWR{{ID: i, Opcode: verbs.OpSend}})
		if err != nil {
			require.ErrorIs(t, err, verbs.ErrQueueFull)
		}
		if n == 1 {
			continue
		}
		marked := -1
		for at := q.send.done.Load(); at != q.send.posted.Load(); at++ {
			if q.send.requests[at&q.send.mask].marked() {
				require.Equal(t, -1, marked, "one reserved entry, one marked request")
				marked = int(at)
			}
		}
		require.GreaterOrEqual(t, marked, 0)
		require.EqualValues(t, flagSignaled, q.send.mem[int(uint32(marked)&q.send.mask)*blockSize+ctrlFlags])
		device(c, c.next, cqeRequest, uint16(marked), nil)
		var wcs [4]verbs.WC
		n, err = c.Poll(wcs[:], one{q})
		require.NoError(t, err)
		require.Zero(t, n, "nobody has asked for it")
		require.EqualValues(t, marked+1, q.send.done.Load())
	}
	require.EqualValues(t, 1, c.lent)
	q.Unmap()
	require.Zero(t, c.lent)
}

// A program that asks for no completion posts for ever, whatever the sizes of its
// queue and of its requests are: where the queue is full, a marked request is on
// its way.
func TestRequestsWithoutCompletionsNeverFillTheQueueForEver(t *testing.T) {
	for _, wrs := range []int{1, 2, 3, 5, 8} {
		for _, inline := range []int{0, 64, 128, 192, 256} {
			for _, length := range []int{0, 20, 84, 148, 256, -1} {
				if length > inline {
					continue
				}
				t.Run(fmt.Sprintf("%d of up to %d bytes, of %d", wrs, inline, length), func(t *testing.T) {
					ctx, _ := newContext(t)
					c := newCQ(t, ctx, 8)
					q := newQP(t, ctx, driver.QPAttr{Type: verbs.QPTypeRC, Cap: verbs.QPCap{MaxSendWR: wrs, MaxInline: inline}, SendCQ: c})
					random := rand.New(rand.NewPCG(1, uint64(wrs<<16|inline)))
					for range 300 {
						n := length
						if n < 0 {
							n = random.IntN(inline + 1)
						}
						wr := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendInline, Inline: [][]byte{make([]byte, n)}}
						posted, _, err := q.PostSend([]verbs.SendWR{wr})
						if posted == 1 {
							continue
						}
						require.ErrorIs(t, err, verbs.ErrQueueFull)
						completeMarked(t, c, q)
						posted, _, err = q.PostSend([]verbs.SendWR{wr})
						require.NoError(t, err, "everything that was marked is done")
						require.Equal(t, 1, posted)
					}
				})
			}
		}
	}
}

// The limit that docs/transports.md tells of.
func TestALargeCQHasReservedEntriesForManyQPs(t *testing.T) {
	ctx, _ := newContext(t)
	ctx.Describe(&verbs.DeviceAttr{MaxCQE: 1<<22 - 1})
	for cqe, least := range map[int]int{1: minReserved, 100: minReserved, 1000: 250, 1 << 12: 1 << 10, 4000: 1000} {
		require.GreaterOrEqual(t, newCQ(t, ctx, cqe).reserved, least, "%d entries", cqe)
	}
}

// Resized, a CQ has its completions in their order, whatever their places in the two rings, and no more
// reserved entries than there are.
func TestCompletionsMoveWithTheirCQ(t *testing.T) {
	for _, sizes := range [][]int{{100, 1000}, {1000, 100}, {100, 1000, 200, 100}, {100, 101}} {
		for _, taken := range []uint32{0, 1, 60, 1000} { // before
			ctx, mem := newContext(t)
			c := newCQ(t, ctx, sizes[0])
			q := newQP(t, ctx, driver.QPAttr{Type: verbs.QPTypeRC, Cap: verbs.QPCap{MaxSendWR: 4}, SignalAll: true})
			require.NoError(t, postOne(q, 0))
			const waiting = 50
			written, next := uint32(0), uint32(0)
			write := func() {
				device(c, written, cqeRequest, 0, func(cqe []byte) { be.PutUint32(cqe[cqeBytes:], next) })
				written++
				next++
			}
			expect := uint32(0)
			take := func(n uint32) {
				for range n {
					var wcs [1]verbs.WC
					q.send.done.Store(0) // the one request completes again
					k, err := c.Poll(wcs[:], one{q})
					require.NoError(t, err)
					require.Equal(t, 1, k)
					require.Equal(t, expect, wcs[0].ByteLen)
					expect++
				}
			}
			for range taken {
				write()
				take(1)
			}
			for range waiting {
				write()
			}
			for _, size := range sizes[1:] {
				q.send.done.Store(0)
				require.ErrorIs(t, c.Resize(waiting-1, nil), verbs.ErrInvalid, "%d wait", waiting)
				require.NoError(t, c.Resize(size, func(entries int, u driver.Udata) error {
					require.GreaterOrEqual(t, entries, size+minReserved)
					in := abi.ViewAt[resizeCQIn](u.In, 0)
					require.EqualValues(t, cqeSize, in.cqeSize)
					require.NotZero(t, in.buffer)
					device(c, written, cqeResize, 0, nil)
					written++
					return nil
				}))
				require.Equal(t, size, c.Capacity())
				require.Equal(t, int(c.mask), c.reserved+size)
				require.Equal(t, bits.ReverseBytes32(c.next), c.record[0])
				take(10)
				for range 10 {
					write()
				}
			}
			take(waiting)
			var wcs [1]verbs.WC
			n, err := c.Poll(wcs[:], one{q})
			require.NoError(t, err)
			require.Zero(t, n)
			c.Unmap()
			q.Unmap()
			ctx.Close()
			require.Zero(t, mem.used)
		}
	}
}

func postOne(q *qp, id uint64) error {
	_, _, err := q.PostSend([]verbs.SendWR{{ID: id, Opcode: verbs.OpSend}})
	return err
}

// What a device has written that has not resized the queue does not end the process, nor the lock.
func TestAQueueThatWasNotResizedIsBroken(t *testing.T) {
	ctx, _ := newContext(t)
	c := newCQ(t, ctx, 100)
	require.ErrorIs(t, c.Resize(1000, func(int, driver.Udata) error { return nil }), errQueue)
	c = newCQ(t, ctx, 100)
	for i := range uint32(50) {
		device(c, i, cqeRequest, 0, nil)
	}
	require.ErrorIs(t, c.Resize(1000, func(int, driver.Udata) error { return nil }), errQueue)
	refused := errors.New("refused")
	require.ErrorIs(t, c.Resize(2000, func(int, driver.Udata) error { return refused }), refused)
	require.Zero(t, c.waiting(), "the new memory is empty")
}

func TestAQPWithoutAReservedEntryIsFreedBySignaledRequests(t *testing.T) {
	ctx, _ := newContext(t)
	c := newCQ(t, ctx, 8)
	attr := driver.QPAttr{Type: verbs.QPTypeRC, Cap: verbs.QPCap{MaxSendWR: 4}, SendCQ: c}
	for range c.reserved {
		require.True(t, newQP(t, ctx, attr).send.marks)
	}
	q := newQP(t, ctx, attr)
	wrs := make([]verbs.SendWR, 5)
	for i := range wrs {
		wrs[i] = verbs.SendWR{ID: uint64(i), Opcode: verbs.OpSend}
	}
	wrs[3].Flags = verbs.SendSignaled
	n, _, err := q.PostSend(wrs)
	require.ErrorIs(t, err, verbs.ErrQueueFull)
	require.Equal(t, 4, n)
	completeMarked(t, c, q)
	require.EqualValues(t, 4, q.send.posted.Load()-q.send.done.Load(), "there is no entry for a marked request")
	device(c, 0, cqeRequest, 3, nil)
	var wcs [2]verbs.WC
	n, err = c.Poll(wcs[:], one{q})
	require.NoError(t, err)
	require.Equal(t, []verbs.WC{{ID: 3, QPN: qpn}}, wcs[:n])
	n, _, err = q.PostSend(wrs[:4])
	require.NoError(t, err)
	require.Equal(t, 4, n)
}

// byNumber are the QPs of a CQ. It calls found before it finds one.
type byNumber struct {
	qps   map[uint32]*qp
	found func()
}

func (b byNumber) Find(num uint32) driver.QP {
	b.found()
	if q, ok := b.qps[num]; ok {
		return q
	}
	return nil
}

// As soon as a marked request is seen to be done another one may be marked, for which
// the device needs the entry.
func TestTheEntryOfAMarkedRequestIsGivenBackAtOnce(t *testing.T) {
	ctx, _ := newContext(t)
	c := newCQ(t, ctx, 8)
	attr := driver.QPAttr{Type: verbs.QPTypeRC, Cap: verbs.QPCap{MaxSendWR: 2}, SendCQ: c}
	marking, signaled := newQP(t, ctx, attr), newQP(t, ctx, attr)
	signaled.number++
	require.NoError(t, postOne(marking, 0))
	_, _, err := signaled.PostSend([]verbs.SendWR{{ID: 1, Opcode: verbs.OpSend, Flags: verbs.SendSignaled}})
	require.NoError(t, err)
	device(c, 0, cqeRequest, 0, nil)
	device(c, 1, cqeRequest, 0, func(cqe []byte) { be.PutUint32(cqe[cqeOpQPN:], signaled.number) })
	var taken []uint32
	var wcs [2]verbs.WC
	n, err := c.Poll(wcs[:], byNumber{map[uint32]*qp{qpn: marking, signaled.number: signaled},
		func() { taken = append(taken, bits.ReverseBytes32(c.record[0])) }})
	require.NoError(t, err)
	require.Equal(t, []verbs.WC{{ID: 1, QPN: signaled.number}}, wcs[:n])
	require.Equal(t, []uint32{0, 1}, taken)
}

// Most requests are written in one loop that knows of little. It writes what is written for any request.
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

// completeMarked completes the marked request, of which there is at most one, and
// takes the completion.
func completeMarked(t *testing.T, c *cq, q *qp) {
	t.Helper()
	marked := 0
	for at := q.send.done.Load(); at != q.send.posted.Load(); at += q.send.requests[at&q.send.mask].blocks() {
		if q.send.requests[at&q.send.mask].marked() {
			marked++
			device(c, c.next, cqeRequest, uint16(at), nil)
		}
	}
	require.LessOrEqual(t, marked, 1, "there is one reserved entry")
	var wcs [2]verbs.WC
	n, err := c.Poll(wcs[:], one{q})
	require.NoError(t, err)
	require.Zero(t, n, "nobody has asked for it")
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
	_, err = q.PostRecv([]verbs.RecvWR{{SGL: sgl(1, 1, 1)}})
	require.ErrorIs(t, err, verbs.ErrInvalid)
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

// Close of a device lets go of its objects in any order, and whoever polls the CQ
// may find a receive of an SRQ whose memory is gone.
func TestAReceiveOfAnSRQThatIsGoneCompletes(t *testing.T) {
	ctx, _ := newContext(t)
	c := newCQ(t, ctx, 8)
	made, err := ctx.CreateSRQ(verbs.SRQAttr{MaxWR: 3, MaxSGE: 1}, func(driver.Udata) (verbs.SRQAttr, error) { return verbs.SRQAttr{}, nil })
	require.NoError(t, err)
	s := made.(*srq)
	q := newQP(t, ctx, driver.QPAttr{Type: verbs.QPTypeRC, Cap: verbs.QPCap{MaxSendWR: 1}, SRQ: s})
	n, err := s.PostRecv([]verbs.RecvWR{{ID: 5}, {ID: 6}})
	require.NoError(t, err)
	require.Equal(t, 2, n)
	freed := s.mem
	s.Unmap()
	before := bytes.Clone(freed)
	device(c, 0, cqeRecv, 1, nil)
	device(c, 1, cqeRecv, 0, nil)
	var wcs [3]verbs.WC
	n, err = c.Poll(wcs[:], one{q})
	require.NoError(t, err)
	require.Equal(t, []verbs.WC{{ID: 6, QPN: qpn, Opcode: verbs.WCRecv}, {ID: 5, QPN: qpn, Opcode: verbs.WCRecv}}, wcs[:n])
	require.Equal(t, before, freed, "memory that was freed")
}

func TestArmingForASolicitedCompletionDoesNotWeaken(t *testing.T) {
	ctx, _ := newContext(t)
	c := newCQ(t, ctx, 8)
	record := func() uint32 { return bits.ReverseBytes32(c.record[1]) }
	c.Arm(true)
	require.EqualValues(t, 1<<24, record())
	c.Arm(false)
	require.EqualValues(t, 0, record())
	c.Arm(true)
	require.EqualValues(t, 0, record(), "it is armed for any")
	c.Notified()
	c.Arm(true)
	require.EqualValues(t, 1<<28|1<<24, record())
	require.Equal(t, bits.ReverseBytes64((1<<28|1<<24)<<32|0xabc), *abi.ViewAt[uint64](ctx.uars[0], cqDoorbell))
}

func TestNothingIsLeftOfWhatCannotBeMade(t *testing.T) {
	ctx, mem := newContext(t)
	pages := mem.used
	refusal := errors.New("the kernel refuses")
	_, err := ctx.CreateCQ(4, func(int, driver.Udata) error { return refusal })
	require.ErrorIs(t, err, refusal)
	_, err = ctx.CreateSRQ(verbs.SRQAttr{MaxWR: 4, MaxSGE: 1}, func(driver.Udata) (verbs.SRQAttr, error) { return verbs.SRQAttr{}, refusal })
	require.ErrorIs(t, err, refusal)
	_, err = ctx.CreateQP(&driver.QPAttr{Type: verbs.QPTypeRC, Cap: size}, func(driver.Udata) (driver.CreatedQP, error) { return driver.CreatedQP{}, refusal })
	require.ErrorIs(t, err, refusal)
	_, err = ctx.CreateQP(&driver.QPAttr{Type: verbs.QPTypeRC, Cap: size}, func(u driver.Udata) (driver.CreatedQP, error) {
		abi.ViewAt[createQPOut](u.Out, 0).bfregIndex = 1 << 20
		return driver.CreatedQP{}, nil
	})
	require.ErrorIs(t, err, verbs.ErrInvalid)
	require.Equal(t, pages, mem.used)
	ctx.Close()
	require.Zero(t, mem.used)
}

func TestPostPollAndArmAllocateNothing(t *testing.T) {
	ctx, _ := newContext(t)
	c := newCQ(t, ctx, 8)
	q := newQP(t, ctx, driver.QPAttr{Type: verbs.QPTypeRC, Cap: size})
	sends := []verbs.SendWR{{Opcode: verbs.OpSend, Flags: verbs.SendSignaled | verbs.SendInline, Inline: [][]byte{make([]byte, 60)}}}
	recvs := []verbs.RecvWR{{SGL: sgl(8)}}
	wcs := make([]verbs.WC, 4)
	var table driver.QPs = one{q}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		at, recv := q.send.posted.Load(), q.recv.posted.Load()
		_, _, _ = q.PostSend(sends)
		_, _ = q.PostRecv(recvs)
		device(c, c.next, cqeRequest, uint16(at), nil)
		device(c, c.next+1, cqeRecv, uint16(recv), nil)
		if n, _ := c.Poll(wcs, table); n != 2 {
			t.Fatal("completions were lost")
		}
		c.Arm(false)
	}))
}

// FuzzCompletions has anything in a CQ, and in completions of a QP with a receive
// queue and of one with an SRQ: polls end, nothing panics, and no request completes
// twice.
func FuzzCompletions(f *testing.F) {
	f.Add([]byte{}, uint8(3), false)
	f.Add([]byte{0x12, 0x34, 0x56, 0, 0, 0, 0x20, 0, 0, 1, 0, 0x20}, uint8(1), true)
	f.Add([]byte{0x12, 0x34, 0x56, 0, 5, 0, 0xd0, 0, 0, 1, 0, 0xe0}, uint8(200), false)
	f.Fuzz(func(t *testing.T, cqes []byte, posts uint8, shared bool) {
		ctx, _ := newContext(t)
		c := newCQ(t, ctx, 8)
		attr := driver.QPAttr{Type: verbs.QPTypeRC, Cap: size, SendCQ: c}
		var s *srq
		if shared {
			made, err := ctx.CreateSRQ(verbs.SRQAttr{MaxWR: 8, MaxSGE: 2}, func(driver.Udata) (verbs.SRQAttr, error) { return verbs.SRQAttr{}, nil })
			require.NoError(t, err)
			s = made.(*srq)
			attr.SRQ, attr.Cap.MaxRecvWR = s, 0
		}
		q := newQP(t, ctx, attr)
		posted, completed := 0, 0
		for i := range posts {
			n, _, _ := q.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend, Flags: verbs.SendFlags(i)}})
			posted += n
			if shared {
				n, _ = s.PostRecv([]verbs.RecvWR{{SGL: sgl(1)}})
			} else {
				n, _ = q.PostRecv([]verbs.RecvWR{{SGL: sgl(1)}})
			}
			posted += n
		}
		const each = 6 // QP, syndrome or so, counter, opcode
		for i := uint32(0); len(cqes) >= each; i++ {
			b := cqes[:each]
			cqes = cqes[each:]
			device(c, i, b[5]>>4, uint16(b[3])<<8|uint16(b[4]), func(cqe []byte) {
				copy(cqe[cqeOpQPN+1:], b[:3])
				cqe[cqeSyndrome] = b[4]
			})
		}
		wcs := make([]verbs.WC, 3)
		for range 2 * int(c.mask) {
			n, err := c.Poll(wcs, one{q})
			require.LessOrEqual(t, n, len(wcs))
			if err != nil {
				require.ErrorIs(t, err, errQueue)
				break
			}
			completed += n
		}
		require.LessOrEqual(t, completed, posted)
	})
}

// BenchmarkPostAndPoll is what a request costs beside the device: its WQE, record and
// doorbell, and its completion.
func BenchmarkPostAndPoll(b *testing.B) {
	b.Run("doorbell", func(b *testing.B) { benchmarkPostAndPoll(b, Driver{}) })
	b.Run("BlueFlame", func(b *testing.B) { benchmarkPostAndPoll(b, Driver{BlueFlame: true}) })
}

func benchmarkPostAndPoll(b *testing.B, of Driver) {
	ctx, _ := newContextOf(b, of)
	c := newCQ(b, ctx, 8)
	q := newQP(b, ctx, driver.QPAttr{Type: verbs.QPTypeRC, Cap: size})
	wrs := []verbs.SendWR{{Opcode: verbs.OpWrite, Flags: verbs.SendSignaled, SGL: sgl(4096), RemoteAddr: 1 << 40, RKey: 7}}
	wcs := make([]verbs.WC, 4)
	var table driver.QPs = one{q}
	b.ReportAllocs()
	for b.Loop() {
		at := q.send.posted.Load()
		if n, _, _ := q.PostSend(wrs); n != 1 {
			b.Fatal("the queue is full")
		}
		device(c, c.next, cqeRequest, uint16(at), nil)
		if n, _ := c.Poll(wcs, table); n != 1 {
			b.Fatal("no completion")
		}
	}
}
