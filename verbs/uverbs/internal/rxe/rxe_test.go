package rxe

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
)

// kernel is memory as the kernel's rxe driver would share it, by offset.
type kernel struct {
	maps   map[uint64][]byte
	mapped int    // mappings that are not unmapped yet
	given  []byte // what the driver was given last
}

var errNoMapping = errors.New("no such mapping")

func (k *kernel) Map(offset uint64, size int, _ driver.Protection) ([]byte, error) {
	mem, ok := k.maps[offset]
	if !ok || size > len(mem) {
		return nil, errNoMapping
	}
	k.mapped++
	return mem[:size:size], nil
}

func (k *kernel) Alloc(size int) ([]byte, error) {
	k.mapped++
	k.given = make([]byte, size)
	return k.given, nil
}

func (k *kernel) Unmap([]byte) { k.mapped-- }

func (k *kernel) Free([]byte) { k.mapped-- }

// answer answers a command as the kernel's rxe driver does.
func (k *kernel) answer(out []byte) func(driver.Udata) error {
	return func(u driver.Udata) error {
		copy(u.Out, out)
		return nil
	}
}

func (k *kernel) openCQ(m mapping) (*cq, error) {
	q, err := (&context{mem: k}).CreateCQ(1, func(_ int, u driver.Udata) error { return k.answer(abi.BytesOf(&m))(u) })
	if err != nil {
		return nil, err
	}
	return q.(*cq), nil
}

func (k *kernel) openQP(attr driver.QPAttr, out createQPOut) (*qp, error) {
	q, err := (&context{mem: k}).CreateQP(&attr, func(u driver.Udata) (driver.CreatedQP, error) {
		return driver.CreatedQP{Cap: attr.Cap}, k.answer(abi.BytesOf(&out))(u)
	})
	if err != nil {
		return nil, err
	}
	return q.(*qp), nil
}

func (k *kernel) openSRQ(attr verbs.SRQAttr, m mapping) (*srq, error) {
	q, err := (&context{mem: k}).CreateSRQ(verbs.SRQAttr{}, func(u driver.Udata) (verbs.SRQAttr, error) {
		return attr, k.answer(abi.BytesOf(&createSRQOut{queue: m}))(u)
	})
	if err != nil {
		return nil, err
	}
	return q.(*srq), nil
}

// resizes answers MODIFY_SRQ: it writes what to map where the driver wants it.
func (k *kernel) resizes(m mapping) func(in []byte) error {
	return func(in []byte) error {
		if abi.ViewAt[modifySRQIn](in, 0).answer != abi.AddressOf(k.given) {
			return errors.New("the answer is wanted elsewhere")
		}
		copy(k.given, abi.BytesOf(&m))
		return nil
	}
}

// queue makes a queue of 2^log elements and returns what to map.
func (k *kernel) queue(offset uint64, log, elementLog int) mapping {
	size := (offsetElements + 1<<(log+elementLog) + 4095) &^ 4095
	mem := make([]byte, size) // of a size that Go aligns as the kernel does, to pages
	*abi.ViewAt[uint32](mem, offsetLogElement) = uint32(elementLog)
	*abi.ViewAt[uint32](mem, offsetMask) = 1<<log - 1
	if k.maps == nil {
		k.maps = make(map[uint64][]byte)
	}
	k.maps[offset] = mem
	return mapping{offset: offset, size: uint32(len(mem))}
}

func newCQ(t testing.TB, log int) (*cq, *kernel, []byte) {
	t.Helper()
	k := new(kernel)
	m := k.queue(8192, log, 6)
	cq, err := k.openCQ(m)
	require.NoError(t, err)
	return cq, k, k.maps[8192]
}

// complete does what the kernel does: it writes a completion and moves its
// index.
func complete(mem []byte, wc abi.WC) {
	mask := *abi.ViewAt[uint32](mem, offsetMask)
	p := abi.ViewAt[uint32](mem, offsetProducer)
	*abi.ViewAt[abi.WC](mem, offsetElements+int(*p)<<6) = wc
	*p = (*p + 1) & mask
}

func TestRxeCompletionsAreTranslated(t *testing.T) {
	imm := networkOrder(0xdeadbeef)
	for _, c := range []struct {
		name string
		wc   abi.WC
		want verbs.WC
	}{
		{"a SEND", abi.WC{WRID: 7, QPNum: 17, ByteLen: 5}, verbs.WC{ID: 7, QPN: 17, ByteLen: 5}},
		{"an atomic", abi.WC{Opcode: 4, ByteLen: 8}, verbs.WC{Opcode: verbs.WCFetchAdd, ByteLen: 8}},
		{"an ATOMIC_WRITE", abi.WC{Opcode: 9}, verbs.WC{Opcode: verbs.WCAtomicWrite}},
		{"a SEND_WITH_IMM, whose flag says nothing", abi.WC{WCFlags: 2, Ex: 5}, verbs.WC{}},
		{"a receive", abi.WC{Opcode: 128, ByteLen: 9, SrcQP: 3, WCFlags: 1},
			verbs.WC{Opcode: verbs.WCRecv, ByteLen: 9, SrcQPN: 3, Flags: verbs.WCGRH}},
		{"a receive with immediate", abi.WC{Opcode: 128, WCFlags: 3, Ex: imm},
			verbs.WC{Opcode: verbs.WCRecv, Flags: verbs.WCGRH | verbs.WCWithImm, Imm: 0xdeadbeef}},
		{"a WRITE with immediate", abi.WC{Opcode: 129, WCFlags: 2, Ex: imm, ByteLen: 1 << 20},
			verbs.WC{Opcode: verbs.WCRecvWriteWithImm, Flags: verbs.WCWithImm, Imm: 0xdeadbeef, ByteLen: 1 << 20}},
		{"an invalidation by the kernel's flag", abi.WC{Opcode: 128, WCFlags: 1 << 2, Ex: 0x1234},
			verbs.WC{Opcode: verbs.WCRecv, Flags: verbs.WCWithInv, Imm: 0x1234}},
		{"an invalidation by the flag of libibverbs", abi.WC{Opcode: 128, WCFlags: 1 << 3, Ex: 0x1234},
			verbs.WC{Opcode: verbs.WCRecv, Flags: verbs.WCWithInv, Imm: 0x1234}},
		{"an error", abi.WC{WRID: 1, Status: 12, QPNum: 2, VendorErr: 9, Opcode: 77, ByteLen: 4},
			verbs.WC{ID: 1, QPN: 2, Status: verbs.WCRetryExcErr, VendorErr: 9}},
		{"a status that does not exist", abi.WC{Status: 24}, verbs.WC{Status: verbs.WCGeneralErr}},
		{"a status beyond a byte", abi.WC{Status: 256}, verbs.WC{Status: verbs.WCGeneralErr}},
		{"an operation that does not exist", abi.WC{Opcode: 7}, verbs.WC{Status: verbs.WCGeneralErr}},
		{"an operation beyond a byte", abi.WC{Opcode: 256 + 128}, verbs.WC{Status: verbs.WCGeneralErr}},
	} {
		cq, _, mem := newCQ(t, 2)
		complete(mem, c.wc)
		var got [2]verbs.WC
		n, err := cq.Poll(got[:], nil)
		require.NoError(t, err, c.name)
		require.Equal(t, 1, n, c.name)
		require.Equal(t, c.want, got[0], c.name)
	}
}

func TestRxeCompletionQueueWraps(t *testing.T) {
	cq, _, mem := newCQ(t, 2)
	next, seen := uint64(0), uint64(0)
	for batch := range 50 {
		for range batch % 4 {
			complete(mem, abi.WC{WRID: next})
			next++
		}
		var wcs [8]verbs.WC
		n, err := cq.Poll(wcs[:], nil)
		require.NoError(t, err)
		require.Equal(t, batch%4, n)
		for _, wc := range wcs[:n] {
			require.Equal(t, seen, wc.ID)
			seen++
		}
		require.Equal(t, *abi.ViewAt[uint32](mem, offsetProducer), *abi.ViewAt[uint32](mem, offsetConsumer))
	}
	require.Equal(t, next, seen)
}

func TestRxePollTakesNoMoreThanThereIsRoomFor(t *testing.T) {
	cq, _, mem := newCQ(t, 3)
	for id := range uint64(5) {
		complete(mem, abi.WC{WRID: id})
	}
	var wcs [2]verbs.WC
	for want := uint64(0); want < 4; want += 2 {
		n, err := cq.Poll(wcs[:], nil)
		require.NoError(t, err)
		require.Equal(t, 2, n)
		require.Equal(t, want, wcs[0].ID)
		require.Equal(t, want+1, wcs[1].ID)
	}
	n, err := cq.Poll(nil, nil)
	require.NoError(t, err)
	require.Zero(t, n)
	n, err = cq.Poll(wcs[:], nil)
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

func TestRxeResizeGoesOnInTheNewQueue(t *testing.T) {
	cq, k, mem := newCQ(t, 2)
	complete(mem, abi.WC{WRID: 1})
	complete(mem, abi.WC{WRID: 2})
	var wcs [4]verbs.WC
	_, err := cq.Poll(wcs[:1], nil)
	require.NoError(t, err)
	bigger := k.queue(1<<20, 5, 6) // into which the kernel has moved the rest
	complete(k.maps[1<<20], abi.WC{WRID: 2})
	require.NoError(t, cq.Resize(31, func(_ int, u driver.Udata) error { return k.answer(abi.BytesOf(&bigger))(u) }))
	complete(k.maps[1<<20], abi.WC{WRID: 3})
	n, err := cq.Poll(wcs[:], nil)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.EqualValues(t, 2, wcs[0].ID)
	require.EqualValues(t, 3, wcs[1].ID)
	require.Equal(t, 1, k.mapped, "the old queue is unmapped")
}

func TestQueuesThatCannotBeAreRefused(t *testing.T) {
	for name, spoil := range map[string]func(mem []byte){
		"elements too small":           func(mem []byte) { *abi.ViewAt[uint32](mem, offsetLogElement) = 5 },
		"elements of 4 GiB":            func(mem []byte) { *abi.ViewAt[uint32](mem, offsetLogElement) = 32 },
		"a shift beyond any word":      func(mem []byte) { *abi.ViewAt[uint32](mem, offsetLogElement) = 1<<32 - 1 },
		"no power of two":              func(mem []byte) { *abi.ViewAt[uint32](mem, offsetMask) = 5 },
		"more than the memory holds":   func(mem []byte) { *abi.ViewAt[uint32](mem, offsetMask) = 63 },
		"all indexes":                  func(mem []byte) { *abi.ViewAt[uint32](mem, offsetMask) = 1<<32 - 1 },
		"our index outside":            func(mem []byte) { *abi.ViewAt[uint32](mem, offsetConsumer) = 4 },
		"our index far outside":        func(mem []byte) { *abi.ViewAt[uint32](mem, offsetConsumer) = 1 << 31 },
		"elements that end one behind": func(mem []byte) { *abi.ViewAt[uint32](mem, offsetLogElement) = 10 },
	} {
		k := new(kernel)
		m := k.queue(0, 2, 6)
		spoil(k.maps[0])
		_, err := k.openCQ(m)
		require.ErrorIs(t, err, errRing, name)
		require.Zero(t, k.mapped, name)
	}
	_, err := new(kernel).openCQ(mapping{})
	require.ErrorIs(t, err, errNoMapping)
}

func TestAnIndexOfTheKernelThatIsOutsideBreaksTheQueue(t *testing.T) {
	cq, _, mem := newCQ(t, 2)
	complete(mem, abi.WC{})
	*abi.ViewAt[uint32](mem, offsetProducer) = 4
	_, err := cq.Poll(make([]verbs.WC, 4), nil)
	require.ErrorIs(t, err, errRing)

	q, _, send, recv := newQP(t, verbs.QPTypeRC, 4)
	*abi.ViewAt[uint32](send, offsetConsumer) = 1 << 20
	*abi.ViewAt[uint32](recv, offsetConsumer) = 1 << 20
	n, doorbell, err := q.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend}})
	require.ErrorIs(t, err, errRing)
	require.Zero(t, n)
	require.False(t, doorbell)
	n, err = q.PostRecv([]verbs.RecvWR{{}})
	require.ErrorIs(t, err, errRing)
	require.Zero(t, n)
}

// newQP makes a QP with queues of depth requests in rings of 8, send
// requests of 512 bytes and receives of 128.
func newQP(t testing.TB, typ verbs.QPType, depth int) (q *qp, k *kernel, send, recv []byte) {
	t.Helper()
	k = new(kernel)
	out := createQPOut{send: k.queue(4096, 3, 9), recv: k.queue(65536, 3, 7)}
	q, err := k.openQP(driver.QPAttr{Type: typ, Cap: verbs.QPCap{MaxSendWR: depth, MaxRecvWR: depth}}, out)
	require.NoError(t, err)
	return q, k, k.maps[4096], k.maps[65536]
}

// sges makes SGEs of the lengths.
func sges(lengths ...uint32) []verbs.SGE {
	list := make([]verbs.SGE, len(lengths))
	for i, n := range lengths {
		list[i] = verbs.SGE{Addr: uint64(i+1) << 32, Length: n, LKey: uint32(i + 100)}
	}
	return list
}

func TestRxeSendRequestsAreEncoded(t *testing.T) {
	le := binary.NativeEndian
	for _, c := range []struct {
		name  string
		typ   verbs.QPType
		wr    verbs.SendWR
		check func(t *testing.T, b []byte)
	}{
		{"SEND", verbs.QPTypeRC, verbs.SendWR{ID: 9, Opcode: verbs.OpSend, Flags: verbs.SendSignaled | verbs.SendSolicited, SGL: sges(10, 20)},
			func(t *testing.T, b []byte) {
				require.EqualValues(t, 9, le.Uint64(b))
				require.EqualValues(t, 2, le.Uint32(b[12:]), "opcode")
				require.EqualValues(t, 2|4, le.Uint32(b[16:]), "flags")
				require.EqualValues(t, 30, le.Uint32(b[184:]), "length")
				require.EqualValues(t, 30, le.Uint32(b[188:]), "resid")
				require.EqualValues(t, 2, le.Uint32(b[196:]), "SGEs")
				require.EqualValues(t, uint64(1<<32), le.Uint64(b[208:]))
				require.EqualValues(t, 10, le.Uint32(b[216:]))
				require.EqualValues(t, 100, le.Uint32(b[220:]))
				require.EqualValues(t, uint64(2<<32), le.Uint64(b[224:]))
				require.EqualValues(t, 20, le.Uint32(b[232:]))
				require.EqualValues(t, 101, le.Uint32(b[236:]))
			}},
		{"WRITE_WITH_IMM", verbs.QPTypeRC, verbs.SendWR{Opcode: verbs.OpWriteWithImm, Imm: 0x01020304, RemoteAddr: 1 << 40, RKey: 77, SGL: sges(5)},
			func(t *testing.T, b []byte) {
				require.Equal(t, []byte{1, 2, 3, 4}, b[20:24], "immediate in network order")
				require.EqualValues(t, uint64(1<<40), le.Uint64(b[24:]))
				require.EqualValues(t, 77, le.Uint32(b[32:]))
				require.EqualValues(t, uint64(1<<40), le.Uint64(b[152:]), "iova")
			}},
		{"SEND_WITH_INV", verbs.QPTypeRC, verbs.SendWR{Opcode: verbs.OpSendWithInv, InvalidateRKey: 0x55},
			func(t *testing.T, b []byte) {
				require.EqualValues(t, 0x55, le.Uint32(b[20:]))
				require.Zero(t, le.Uint32(b[184:]))
				require.Zero(t, le.Uint32(b[196:]))
			}},
		{"inline", verbs.QPTypeRC, verbs.SendWR{Opcode: verbs.OpWrite, Flags: verbs.SendInline, Inline: [][]byte{[]byte("ab"), nil, []byte("cde")}, SGL: sges(1)},
			func(t *testing.T, b []byte) {
				require.EqualValues(t, 8, le.Uint32(b[16:]), "flags")
				require.EqualValues(t, 5, le.Uint32(b[184:]), "length")
				require.EqualValues(t, 1, le.Uint32(b[196:]), "one piece")
				require.Equal(t, "abcde", string(b[208:213]))
			}},
		{"CMP_AND_SWP", verbs.QPTypeRC, verbs.SendWR{Opcode: verbs.OpCompareSwap, RemoteAddr: 1 << 40, RKey: 5, CompareAdd: 11, Swap: 12, SGL: sges(8)},
			func(t *testing.T, b []byte) {
				require.EqualValues(t, uint64(1<<40), le.Uint64(b[24:]))
				require.EqualValues(t, 11, le.Uint64(b[32:]))
				require.EqualValues(t, 12, le.Uint64(b[40:]))
				require.EqualValues(t, 5, le.Uint32(b[48:]))
				require.EqualValues(t, uint64(1<<40), le.Uint64(b[152:]), "iova")
			}},
		{"LOCAL_INV", verbs.QPTypeRC, verbs.SendWR{Opcode: verbs.OpLocalInv, InvalidateRKey: 3, SGL: sges(8)},
			func(t *testing.T, b []byte) {
				require.EqualValues(t, 3, le.Uint32(b[20:]))
				require.Zero(t, le.Uint32(b[184:]), "length")
				require.Zero(t, le.Uint32(b[196:]), "SGEs")
			}},
		{"ATOMIC_WRITE", verbs.QPTypeRC, verbs.SendWR{Opcode: verbs.OpAtomicWrite, Flags: verbs.SendInline, Inline: [][]byte{[]byte("12345678")}, RemoteAddr: 64, RKey: 2},
			func(t *testing.T, b []byte) {
				require.Zero(t, le.Uint32(b[16:])&8, "the kernel's way of inline is another")
				require.EqualValues(t, 64, le.Uint64(b[24:]))
				require.EqualValues(t, 2, le.Uint32(b[32:]))
				require.EqualValues(t, 8, le.Uint32(b[184:]))
				require.Equal(t, "12345678", string(b[208:216]))
			}},
		{"FLUSH", verbs.QPTypeRC, verbs.SendWR{Opcode: verbs.OpFlush, RemoteAddr: 128, RKey: 6, Flush: &verbs.Flush{Type: verbs.FlushGlobal, Level: verbs.FlushMR, Length: 99}},
			func(t *testing.T, b []byte) {
				require.EqualValues(t, 128, le.Uint64(b[24:]))
				require.EqualValues(t, 6, le.Uint32(b[36:]))
				require.Equal(t, []byte{1, 1}, b[40:42], "type, level")
				require.EqualValues(t, 99, le.Uint32(b[184:]), "length")
				require.EqualValues(t, 128, le.Uint64(b[152:]), "iova")
			}},
	} {
		t.Run(c.name, func(t *testing.T) {
			q, _, send, _ := newQP(t, c.typ, 4)
			slot := send[offsetElements:][:512]
			for i := range slot {
				slot[i] = 0xee // what was there before must not show
			}
			n, doorbell, err := q.PostSend([]verbs.SendWR{c.wr})
			require.NoError(t, err)
			require.Equal(t, 1, n)
			require.True(t, doorbell)
			require.EqualValues(t, 1, *abi.ViewAt[uint32](send, offsetProducer))
			require.Equal(t, make([]byte, 8), slot[144:152], "status and state")
			c.check(t, slot)
		})
	}
}

func TestNothingRemainsOfTheRxeRequestBefore(t *testing.T) {
	q, _, send, recv := newQP(t, verbs.QPTypeRC, 4)
	for _, mem := range [][]byte{send, recv} {
		for i := range mem[offsetElements:] {
			mem[offsetElements+i] = 0xee
		}
	}
	for i, wr := range []verbs.SendWR{
		{Opcode: verbs.OpWrite}, {Opcode: verbs.OpFetchAdd}, {Opcode: verbs.OpFlush, Flush: &verbs.Flush{}},
	} {
		_, _, err := q.PostSend([]verbs.SendWR{wr})
		require.NoError(t, err)
		slot := send[offsetElements+i*512:][:208]
		require.EqualValues(t, wr.Opcode, slot[12])
		slot[12] = 0
		require.Equal(t, make([]byte, 208), slot, "%v", wr.Opcode)
	}
	_, err := q.PostRecv([]verbs.RecvWR{{}})
	require.NoError(t, err)
	require.Equal(t, make([]byte, 40), recv[offsetElements:][:40])
}

func TestRxeReceivesAreEncoded(t *testing.T) {
	q, _, _, recv := newQP(t, verbs.QPTypeRC, 4)
	n, err := q.PostRecv([]verbs.RecvWR{{ID: 3}, {ID: 4, SGL: sges(6, 7)}})
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.EqualValues(t, 2, *abi.ViewAt[uint32](recv, offsetProducer))
	b := recv[offsetElements+128:]
	require.EqualValues(t, 4, binary.NativeEndian.Uint64(b))
	require.EqualValues(t, 13, binary.NativeEndian.Uint32(b[16:]), "length")
	require.EqualValues(t, 13, binary.NativeEndian.Uint32(b[20:]), "resid")
	require.EqualValues(t, 2, binary.NativeEndian.Uint32(b[28:]), "SGEs")
	require.EqualValues(t, 7, binary.NativeEndian.Uint32(b[40+16+8:]))
	n, err = q.PostRecv([]verbs.RecvWR{{SGL: sges(1, 1, 1, 1, 1, 1)}})
	require.ErrorIs(t, err, verbs.ErrInvalid, "more than an element has room for")
	require.Zero(t, n)
	_, err = q.PostRecv([]verbs.RecvWR{{SGL: sges(1<<32-1, 1)}})
	require.ErrorIs(t, err, verbs.ErrInvalid, "a length beyond 32 bits")
}

func TestRxeQueuesTakeWhatTheyWereMadeForAndWrap(t *testing.T) {
	q, _, send, recv := newQP(t, verbs.QPTypeRC, 5)
	s, r := q.Capacity()
	require.Equal(t, 5, s)
	require.Equal(t, 5, r)
	wrs := make([]verbs.SendWR, 9)
	recvs := make([]verbs.RecvWR, 9)
	for i := range wrs {
		wrs[i].Opcode = verbs.OpSend
	}
	for round := range uint32(20) {
		n, doorbell, err := q.PostSend(wrs)
		require.ErrorIs(t, err, verbs.ErrQueueFull)
		require.Equal(t, 5, n)
		require.True(t, doorbell)
		n, doorbell, err = q.PostSend(wrs)
		require.ErrorIs(t, err, verbs.ErrQueueFull)
		require.Zero(t, n)
		require.False(t, doorbell)
		n, err = q.PostRecv(recvs)
		require.ErrorIs(t, err, verbs.ErrQueueFull)
		require.Equal(t, 5, n)
		for _, mem := range [][]byte{send, recv} { // the kernel takes them
			require.Equal(t, (round+1)*5&7, *abi.ViewAt[uint32](mem, offsetProducer))
			*abi.ViewAt[uint32](mem, offsetConsumer) = (round + 1) * 5 & 7
		}
	}
}

func TestRxeStopsAtTheRequestThatItCannotTake(t *testing.T) {
	q, _, send, _ := newQP(t, verbs.QPTypeRC, 6)
	good := verbs.SendWR{Opcode: verbs.OpSend}
	for name, bad := range map[string]verbs.SendWR{
		"inline that does not fit": {Opcode: verbs.OpSend, Flags: verbs.SendInline, Inline: [][]byte{make([]byte, 305)}},
		"too many SGEs":            {Opcode: verbs.OpSend, SGL: sges(make([]uint32, 20)...)},
		"a message of 8 MiB + 1":   {Opcode: verbs.OpWrite, SGL: sges(8<<20, 1)},
	} {
		before := *abi.ViewAt[uint32](send, offsetProducer)
		n, doorbell, err := q.PostSend([]verbs.SendWR{good, bad, good})
		require.ErrorIs(t, err, verbs.ErrInvalid, name)
		require.Equal(t, 1, n, name)
		require.True(t, doorbell, name)
		require.Equal(t, (before+1)&7, *abi.ViewAt[uint32](send, offsetProducer), name)
		*abi.ViewAt[uint32](send, offsetConsumer) = (before + 1) & 7
	}
}

func TestRxeQPsUnmapWhatTheyMapped(t *testing.T) {
	q, k, _, _ := newQP(t, verbs.QPTypeRC, 4)
	require.Equal(t, 2, k.mapped)
	q.Unmap()
	require.Zero(t, k.mapped)

	out := createQPOut{send: k.queue(4096, 3, 9), recv: mapping{offset: 1, size: 4096}}
	_, err := k.openQP(driver.QPAttr{}, out)
	require.ErrorIs(t, err, errNoMapping)
	require.Zero(t, k.mapped, "nothing is left of a QP that could not be opened")

	q, err = k.openQP(driver.QPAttr{SRQ: new(srq)}, out)
	require.NoError(t, err)
	require.Equal(t, 1, k.mapped, "a QP with an SRQ has no receive queue")
	q.Unmap()
	require.Zero(t, k.mapped)
}

func TestPostAndPollOfRxeAllocateNothing(t *testing.T) {
	q, _, send, recv := newQP(t, verbs.QPTypeRC, 6)
	cq, _, mem := newCQ(t, 3)
	wrs := []verbs.SendWR{
		{Opcode: verbs.OpSendWithImm, SGL: sges(1, 2)},
		{Opcode: verbs.OpWrite, Flags: verbs.SendInline, Inline: [][]byte{make([]byte, 100)}},
	}
	recvs := []verbs.RecvWR{{SGL: sges(8)}}
	wcs := make([]verbs.WC, 4)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		_, _, _ = q.PostSend(wrs)
		_, _ = q.PostRecv(recvs)
		*abi.ViewAt[uint32](send, offsetConsumer) = *abi.ViewAt[uint32](send, offsetProducer)
		*abi.ViewAt[uint32](recv, offsetConsumer) = *abi.ViewAt[uint32](recv, offsetProducer)
		complete(mem, abi.WC{})
		_, _ = cq.Poll(wcs, nil)
	}))
}
