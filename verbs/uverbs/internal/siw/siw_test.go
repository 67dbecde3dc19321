package siw

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
)

// testMemory maps queues for a test, as the kernel would.
type testMemory struct {
	queues map[uint64][]byte
	fail   uint64 // the key that cannot be mapped
	mapped int
}

var errNoMapping = errors.New("no such mapping")

func (m *testMemory) Map(key uint64, size int, _ driver.Protection) ([]byte, error) {
	if key == m.fail {
		return nil, errNoMapping
	}
	if m.queues == nil {
		m.queues = make(map[uint64][]byte)
	}
	if m.queues[key] == nil {
		m.queues[key] = make([]byte, size) // aligned to words, as all of this size
	}
	m.mapped++
	return m.queues[key][:size:size], nil
}

func (m *testMemory) Alloc(int) ([]byte, error) { return nil, errNoMapping }

func (m *testMemory) Unmap([]byte) { m.mapped-- }

func (m *testMemory) Free([]byte) { m.mapped-- }

func (m *testMemory) context() *context { return &context{mem: m} }

// answer answers a command as the kernel's siw driver does.
func answer(out []byte) func(driver.Udata) error {
	return func(u driver.Udata) error {
		copy(u.Out, out)
		return nil
	}
}

func (m *testMemory) openQP(attr driver.QPAttr, sqes, rqes uint32) (*qp, error) {
	out := createQPOut{numSQE: sqes, numRQE: rqes, sqKey: sqKey, rqKey: rqKey}
	q, err := m.context().CreateQP(&attr, func(u driver.Udata) (driver.CreatedQP, error) {
		return driver.CreatedQP{Cap: attr.Cap}, answer(abi.BytesOf(&out))(u)
	})
	if err != nil {
		return nil, err
	}
	return q.(*qp), nil
}

func (m *testMemory) openCQ(cqes uint32) (*cq, error) {
	q, err := m.context().CreateCQ(1, func(_ int, u driver.Udata) error {
		return answer(abi.BytesOf(&createCQOut{numCQE: cqes, cqKey: cqKey}))(u)
	})
	if err != nil {
		return nil, err
	}
	return q.(*cq), nil
}

func (m *testMemory) openSRQ(rqes uint32) (*srq, error) {
	q, err := m.context().CreateSRQ(verbs.SRQAttr{}, func(u driver.Udata) (verbs.SRQAttr, error) {
		return verbs.SRQAttr{}, answer(abi.BytesOf(&createSRQOut{numRQE: rqes, srqKey: rqKey + 1}))(u)
	})
	if err != nil {
		return nil, err
	}
	return q.(*srq), nil
}

const (
	sqKey, rqKey, cqKey = 0x1000, 0x2000, 0x3000
)

func newQP(t testing.TB, attr driver.QPAttr, sqes, rqes uint32) (*qp, *testMemory) {
	t.Helper()
	mem := &testMemory{}
	q, err := mem.openQP(attr, sqes, rqes)
	require.NoError(t, err)
	return q, mem
}

func newCQ(t testing.TB, cqes uint32) *cq {
	t.Helper()
	c, err := new(testMemory).openCQ(cqes)
	require.NoError(t, err)
	return c
}

// kernelTakes plays the kernel: it copies the next send request and frees its
// element.
func kernelTakes(t testing.TB, q *qp, i uint32) sqEntry {
	t.Helper()
	sqe := *abi.ViewAt[sqEntry](q.send.element(i), 0)
	require.True(t, isValid(sqe.word), "request %d", i)
	q.send.word(i).Store(0)
	return sqe
}

// kernelCompletes writes completion i.
func kernelCompletes(c *cq, i uint32, cqe cqEntry, flags, opcode uint8, status uint16) {
	*abi.ViewAt[cqEntry](c.ring.element(i), 0) = cqe
	word := uint32(flags) | uint32(opcode)<<8 | uint32(status)<<16
	if !abi.LittleEndian {
		word = uint32(flags)<<24 | uint32(opcode)<<16 | uint32(status)
	}
	c.ring.word(i).Store(word)
}

func TestSiwSendRequestsAreWrittenAsTheKernelReadsThem(t *testing.T) {
	sgl := []verbs.SGE{{Addr: 1, Length: 2, LKey: 3}, {Addr: 4, Length: 5, LKey: 6}}
	for _, c := range []struct {
		name      string
		wr        verbs.SendWR
		signalAll bool
		flags     uint16
		sges, op  uint8
		rkey      uint32
	}{
		{"SEND", verbs.SendWR{ID: 9, Opcode: verbs.OpSend, SGL: sgl}, false, 1, 2, 3, 0},
		{"solicited and signaled SEND", verbs.SendWR{ID: 9, Opcode: verbs.OpSend, SGL: sgl, Flags: verbs.SendSignaled | verbs.SendSolicited}, false, 1 | 4 | 8, 2, 3, 0},
		{"a QP that signals all", verbs.SendWR{ID: 9, Opcode: verbs.OpSend, SGL: sgl}, true, 1 | 4, 2, 3, 0},
		{"SEND of nothing", verbs.SendWR{ID: 9, Opcode: verbs.OpSend}, false, 1, 0, 3, 0},
		{"fenced WRITE", verbs.SendWR{ID: 9, Opcode: verbs.OpWrite, SGL: sgl, Flags: verbs.SendFence, RemoteAddr: 77, RKey: 8}, false, 1 | 16, 2, 0, 8},
		{"READ", verbs.SendWR{ID: 9, Opcode: verbs.OpRead, SGL: sgl[:1], RemoteAddr: 77, RKey: 8}, false, 1, 1, 1, 8},
		{"READ, whose fence the kernel would not take", verbs.SendWR{ID: 9, Opcode: verbs.OpRead, SGL: sgl[:1], Flags: verbs.SendFence, RKey: 8}, false, 1, 1, 1, 8},
		{"SEND_WITH_INV", verbs.SendWR{ID: 9, Opcode: verbs.OpSendWithInv, SGL: sgl, InvalidateRKey: 5}, false, 1, 2, 5, 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			q, _ := newQP(t, driver.QPAttr{SignalAll: c.signalAll}, 4, 4)
			n, doorbell, err := q.PostSend([]verbs.SendWR{c.wr})
			require.NoError(t, err)
			require.Equal(t, 1, n)
			require.True(t, doorbell)
			got := kernelTakes(t, q, 0)
			require.Equal(t, packWord(c.flags, c.sges, c.op), got.word)
			require.EqualValues(t, 9, got.id)
			require.Equal(t, c.wr.RemoteAddr, got.raddr)
			require.Equal(t, c.rkey, got.rkey)
			for i, s := range c.wr.SGL {
				require.Equal(t, sge{addr: s.Addr, length: s.Length, lkey: s.LKey}, got.sge[i])
			}
		})
	}
}

func TestSiwInlineDataTakesThePlaceOfSGEs(t *testing.T) {
	q, _ := newQP(t, driver.QPAttr{}, 4, 4)
	data := make([]byte, maxInline)
	for i := range data {
		data[i] = byte(i + 1)
	}
	wr := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendInline, Inline: [][]byte{data[:30], nil, data[30:]}}
	_, _, err := q.PostSend([]verbs.SendWR{wr, {Opcode: verbs.OpWrite, Flags: verbs.SendInline, RemoteAddr: 3}})
	require.NoError(t, err)
	element := append([]byte{}, q.send.element(0)...)
	got := kernelTakes(t, q, 0)
	require.Equal(t, packWord(flagValid|flagInline, 1, opSend), got.word)
	require.Equal(t, sge{length: maxInline}, got.sge[0])
	require.Equal(t, data, element[40:])

	got = kernelTakes(t, q, 1)
	require.Equal(t, packWord(flagValid, 0, opWrite), got.word, "no data is not inline")
}

func TestSiwGetsNoEmptySGEs(t *testing.T) {
	q, _ := newQP(t, driver.QPAttr{}, 4, 4)
	sgl := []verbs.SGE{{Addr: 1}, {Addr: 2, Length: 5, LKey: 6}, {Addr: 3}, {Addr: 4, Length: 7, LKey: 8}, {}, {}, {}, {}}
	_, _, err := q.PostSend([]verbs.SendWR{{Opcode: verbs.OpWrite, SGL: sgl}, {Opcode: verbs.OpRead, SGL: sgl[:3]}})
	require.NoError(t, err)
	got := kernelTakes(t, q, 0)
	require.Equal(t, packWord(flagValid, 2, opWrite), got.word)
	require.Equal(t, []sge{{addr: 2, length: 5, lkey: 6}, {addr: 4, length: 7, lkey: 8}}, got.sge[:2])
	got = kernelTakes(t, q, 1)
	require.Equal(t, packWord(flagValid, 1, opRead), got.word)
	require.Equal(t, sge{addr: 2, length: 5, lkey: 6}, got.sge[0])
	_, err = q.PostRecv([]verbs.RecvWR{{SGL: sgl}})
	require.NoError(t, err)
	rqe := *abi.ViewAt[rqEntry](q.recv.element(0), 0)
	require.Equal(t, packWord(flagValid, 2, opReceive), rqe.word)
	require.EqualValues(t, 7, rqe.sge[1].length)
}

func TestSiwGetsShortMemoryOfTwoPagesInTwoSGEs(t *testing.T) {
	for _, c := range []struct {
		op   verbs.Opcode
		addr uint64
		n    uint32
		want []sge
	}{
		{verbs.OpSend, 0x4ffe, 2, []sge{{addr: 0x4ffe, length: 2, lkey: 6}}},
		{verbs.OpSend, 0x4fff, 2, []sge{{addr: 0x4fff, length: 1, lkey: 6}, {addr: 0x5000, length: 1, lkey: 6}}},
		{verbs.OpWrite, 0x4ff0, 32, []sge{{addr: 0x4ff0, length: 16, lkey: 6}, {addr: 0x5000, length: 16, lkey: 6}}},
		{verbs.OpSendWithInv, 0x4fe1, 32, []sge{{addr: 0x4fe1, length: 31, lkey: 6}, {addr: 0x5000, length: 1, lkey: 6}}},
		{verbs.OpWrite, 0x4ff0, 33, []sge{{addr: 0x4ff0, length: 33, lkey: 6}}},
		{verbs.OpWrite, 0x5000, 32, []sge{{addr: 0x5000, length: 32, lkey: 6}}},
		{verbs.OpRead, 0x4fff, 2, []sge{{addr: 0x4fff, length: 2, lkey: 6}}}, // is written there
	} {
		q, _ := newQP(t, driver.QPAttr{}, 1, 1)
		_, _, err := q.PostSend([]verbs.SendWR{{Opcode: c.op, SGL: []verbs.SGE{{Addr: c.addr, Length: c.n, LKey: 6}}}})
		require.NoError(t, err)
		got := kernelTakes(t, q, 0)
		op, _ := operation(c.op)
		require.Equal(t, packWord(flagValid, uint8(len(c.want)), op), got.word, "%v", c)
		require.Equal(t, c.want, got.sge[:len(c.want)])
	}
}

func TestSiwReadAlwaysHasACleanSGE(t *testing.T) {
	q, _ := newQP(t, driver.QPAttr{}, 1, 1)
	_, _, err := q.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend, SGL: []verbs.SGE{{Addr: 1, Length: 2, LKey: 3}}}})
	require.NoError(t, err)
	kernelTakes(t, q, 0)
	_, _, err = q.PostSend([]verbs.SendWR{{Opcode: verbs.OpRead}})
	require.NoError(t, err)
	require.Equal(t, sge{}, kernelTakes(t, q, 1).sge[0])
}

func TestSiwRefusesWhatWouldBlockTheQueue(t *testing.T) {
	seven := slices.Repeat([]verbs.SGE{{Length: 1}}, maxSGE+1)
	for name, c := range map[string]struct {
		wr   verbs.SendWR
		want error
	}{
		"immediate":                {verbs.SendWR{Opcode: verbs.OpSendWithImm}, verbs.ErrUnsupported},
		"WRITE with immediate":     {verbs.SendWR{Opcode: verbs.OpWriteWithImm}, verbs.ErrUnsupported},
		"atomic":                   {verbs.SendWR{Opcode: verbs.OpFetchAdd}, verbs.ErrUnsupported},
		"too many SGEs":            {verbs.SendWR{Opcode: verbs.OpSend, SGL: seven}, verbs.ErrInvalid},
		"READ into two":            {verbs.SendWR{Opcode: verbs.OpRead, SGL: seven[:2]}, verbs.ErrInvalid},
		"too much inline":          {verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendInline, Inline: [][]byte{make([]byte, maxInline+1)}}, verbs.ErrInvalid},
		"inline with invalidation": {verbs.SendWR{Opcode: verbs.OpSendWithInv, Flags: verbs.SendInline, Inline: [][]byte{{1}}}, verbs.ErrUnsupported},
		"too long":                 {verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{{Length: 1 << 31}}}, verbs.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			q, _ := newQP(t, driver.QPAttr{}, 4, 4)
			n, doorbell, err := q.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend}, c.wr, {Opcode: verbs.OpSend}})
			require.Equal(t, 1, n)
			require.True(t, doorbell, "the good one goes")
			require.ErrorIs(t, err, c.want)
			require.False(t, isValid(q.send.word(1).Load()))
		})
	}
}

func TestSiwQueueIsFullUntilTheKernelTakesARequest(t *testing.T) {
	q, _ := newQP(t, driver.QPAttr{}, 4, 2)
	wrs := make([]verbs.SendWR, 6)
	for i := range wrs {
		wrs[i] = verbs.SendWR{ID: uint64(i), Opcode: verbs.OpSend}
	}
	n, doorbell, err := q.PostSend(wrs)
	require.Equal(t, 4, n)
	require.True(t, doorbell)
	require.ErrorIs(t, err, verbs.ErrQueueFull)
	n, doorbell, err = q.PostSend(wrs)
	require.Zero(t, n)
	require.False(t, doorbell)
	require.ErrorIs(t, err, verbs.ErrQueueFull)
	for i := range uint32(4) {
		require.EqualValues(t, i, kernelTakes(t, q, i).id)
		n, _, err = q.PostSend(wrs[4:5])
		require.NoError(t, err)
		require.Equal(t, 1, n)
	}

	recvs := make([]verbs.RecvWR, 3)
	n, err = q.PostRecv(recvs)
	require.Equal(t, 2, n)
	require.ErrorIs(t, err, verbs.ErrQueueFull)
	q.recv.word(0).Store(0)
	n, err = q.PostRecv(recvs)
	require.Equal(t, 1, n)
	require.ErrorIs(t, err, verbs.ErrQueueFull)
}

func TestSiwTakesBackWhatTheKernelLeft(t *testing.T) {
	q, _ := newQP(t, driver.QPAttr{}, 4, 2)
	post := func(ids ...uint64) {
		for _, id := range ids {
			n, _, err := q.PostSend([]verbs.SendWR{{ID: id, Opcode: verbs.OpSend}})
			require.NoError(t, err)
			require.Equal(t, 1, n)
		}
	}
	post(1, 2, 3)
	kernelTakes(t, q, 0)
	post(4, 5) // one of them has gone round
	_, err := q.PostRecv([]verbs.RecvWR{{ID: 9}})
	require.NoError(t, err)
	sends, recvs := q.TakeBack()
	require.Equal(t, []uint64{2, 3, 4, 5}, sends)
	require.Equal(t, []uint64{9}, recvs)
	sends, recvs = q.TakeBack()
	require.Empty(t, sends)
	require.Empty(t, recvs)
	post(6)
	sends, _ = q.TakeBack()
	require.Equal(t, []uint64{6}, sends)

	q, _ = newQP(t, driver.QPAttr{}, 1, 0)
	post(7)
	sends, recvs = q.TakeBack()
	require.Equal(t, []uint64{7}, sends)
	require.Empty(t, recvs)
}

func TestSiwRingsTheDoorbellUnlessTheKernelIsStillBehind(t *testing.T) {
	q, _ := newQP(t, driver.QPAttr{}, 4, 4)
	post := func(n int) bool {
		_, doorbell, err := q.PostSend(make([]verbs.SendWR, 1, 4)[:n:n])
		require.NoError(t, err)
		return doorbell
	}
	one := func() bool {
		_, doorbell, err := q.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend}})
		require.NoError(t, err)
		return doorbell
	}
	require.False(t, post(0), "nothing was posted")
	require.True(t, one())
	require.False(t, one(), "the first is not taken yet: the second will be found behind it")
	kernelTakes(t, q, 0)
	require.False(t, one())
	kernelTakes(t, q, 1)
	kernelTakes(t, q, 2)
	require.True(t, one())
	kernelTakes(t, q, 3)
	_, doorbell, err := q.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend}, {Opcode: verbs.OpSend}, {Opcode: verbs.OpSend}, {Opcode: verbs.OpSend}})
	require.NoError(t, err)
	require.True(t, doorbell, "the whole ring is new")
}

func TestSiwReceivesAreWrittenAsTheKernelReadsThem(t *testing.T) {
	q, _ := newQP(t, driver.QPAttr{}, 4, 4)
	n, err := q.PostRecv([]verbs.RecvWR{
		{ID: 1, SGL: []verbs.SGE{{Addr: 10, Length: 20, LKey: 30}, {Addr: 11, Length: 21, LKey: 31}}}, {ID: 2},
	})
	require.NoError(t, err)
	require.Equal(t, 2, n)
	got := *abi.ViewAt[rqEntry](q.recv.element(0), 0)
	require.EqualValues(t, 1, got.id)
	require.Equal(t, packWord(flagValid, 2, opReceive), got.word)
	require.Equal(t, sge{addr: 11, length: 21, lkey: 31}, got.sge[1])
	require.Equal(t, packWord(flagValid, 0, opReceive), abi.ViewAt[rqEntry](q.recv.element(1), 0).word)
	n, err = q.PostRecv([]verbs.RecvWR{{SGL: slices.Repeat([]verbs.SGE{{Length: 1}}, maxSGE+1)}})
	require.Zero(t, n)
	require.ErrorIs(t, err, verbs.ErrInvalid)
}

func TestSiwQPWithoutReceiveQueueMapsNone(t *testing.T) {
	for name, c := range map[string]struct {
		attr driver.QPAttr
		rqes uint32
	}{
		"no receives": {driver.QPAttr{Cap: verbs.QPCap{MaxSendWR: 3}}, 0},
		"an SRQ":      {driver.QPAttr{Cap: verbs.QPCap{MaxSendWR: 3, MaxRecvWR: 8}, SRQ: new(srq)}, 8},
	} {
		t.Run(name, func(t *testing.T) {
			q, mem := newQP(t, c.attr, 4, c.rqes)
			send, recv := q.Capacity()
			require.Equal(t, 3, send, "what was asked for")
			require.Zero(t, recv)
			require.NotContains(t, mem.queues, uint64(rqKey))
			_, err := q.PostRecv([]verbs.RecvWR{{}})
			require.ErrorIs(t, err, verbs.ErrQueueFull)
			q.Unmap()
			require.Zero(t, mem.mapped)
		})
	}
}

func TestSiwImpossibleQueuesAreRefused(t *testing.T) {
	for name, entries := range map[string][2]uint32{
		"nothing":            {},
		"no send queue":      {0, 4},
		"no power of two":    {3, 4},
		"too large":          {1 << 31, 4},
		"odd receive queue":  {4, 5},
		"huge receive queue": {4, 1 << 30},
	} {
		t.Run(name, func(t *testing.T) {
			mem := &testMemory{}
			_, err := mem.openQP(driver.QPAttr{}, entries[0], entries[1])
			require.ErrorIs(t, err, errQueue)
			require.Zero(t, mem.mapped)
		})
	}
	for _, entries := range []uint32{0, 3, 1 << 31} {
		_, err := new(testMemory).openCQ(entries)
		require.ErrorIs(t, err, errQueue, "%d", entries)
		_, err = new(testMemory).openSRQ(entries)
		require.ErrorIs(t, err, errQueue, "%d", entries)
	}
}

func TestSiwUnmapsTheSendQueueIfTheReceiveQueueCannotBeMapped(t *testing.T) {
	for _, key := range []uint64{sqKey, rqKey} {
		mem := &testMemory{fail: key}
		_, err := mem.openQP(driver.QPAttr{}, 4, 4)
		require.ErrorIs(t, err, errNoMapping)
		require.Zero(t, mem.mapped)
	}
}

func TestSiwCompletionsAreTranslated(t *testing.T) {
	for status, want := range map[uint16]verbs.WCStatus{
		1: verbs.WCLocLenErr, 2: verbs.WCLocProtErr, 3: verbs.WCLocQPOpErr, 4: verbs.WCWRFlushErr, 5: verbs.WCBadRespErr,
		6: verbs.WCLocAccessErr, 7: verbs.WCRemAccessErr, 8: verbs.WCRemInvReqErr, 9: verbs.WCGeneralErr, 10: verbs.WCGeneralErr, 0xffff: verbs.WCGeneralErr,
	} {
		c := newCQ(t, 2)
		kernelCompletes(c, 0, cqEntry{id: 5, qpID: 1<<32 | 9}, flagValid, opSend, status)
		require.Equal(t, []verbs.WC{{ID: 5, QPN: 9, Status: want, VendorErr: uint32(status)}}, poll(t, c))
	}
	for opcode, want := range map[uint8]verbs.WCOpcode{
		0: verbs.WCWrite, 1: verbs.WCRead, 2: verbs.WCRead, 3: verbs.WCSend, 5: verbs.WCSend, 8: verbs.WCRecv,
	} {
		c := newCQ(t, 2)
		kernelCompletes(c, 0, cqEntry{id: 5, bytes: 70, qpID: 9}, flagValid, opcode, 0)
		require.Equal(t, []verbs.WC{{ID: 5, QPN: 9, Opcode: want, ByteLen: 70}}, poll(t, c))
	}
	c := newCQ(t, 2)
	kernelCompletes(c, 0, cqEntry{id: 5, qpID: 9, invalStag: 0x77}, flagValid|flagRemInval, opReceive, 0)
	kernelCompletes(c, 1, cqEntry{id: 6, qpID: 9}, flagValid, 200, 0)
	require.Equal(t, []verbs.WC{
		{ID: 5, QPN: 9, Opcode: verbs.WCRecv, Flags: verbs.WCWithInv, Imm: 0x77},
		{ID: 6, QPN: 9, Status: verbs.WCGeneralErr},
	}, poll(t, c))
}

func poll(t testing.TB, c *cq) []verbs.WC {
	t.Helper()
	wcs := make([]verbs.WC, 64)
	n, err := c.Poll(wcs, nil)
	require.NoError(t, err)
	return wcs[:n]
}

func TestSiwCompletionQueueGoesRound(t *testing.T) {
	c := newCQ(t, 4)
	id := uint64(0)
	for range 5 {
		for range 3 {
			kernelCompletes(c, uint32(id), cqEntry{id: id}, flagValid, opSend, 0)
			id++
		}
		var one [1]verbs.WC
		n, err := c.Poll(one[:], nil)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, id-3, one[0].ID)
		rest := poll(t, c)
		require.Len(t, rest, 2)
		require.Equal(t, id-1, rest[1].ID)
	}
	for i := range uint32(4) {
		require.Zero(t, c.ring.word(i).Load(), "the kernel finds its element free")
	}
}

func TestSiwArmsForAnyCompletion(t *testing.T) {
	for _, solicited := range []bool{false, true} {
		c := newCQ(t, 4)
		require.True(t, c.Arm(solicited))
		require.EqualValues(t, 3, abi.WordAt(c.ring.mem, 4*32).Load())
	}
}

func TestSiwAddsItsBytesToCommands(t *testing.T) {
	room := 0
	d, err := Driver{}.Open(new(testMemory), func(u driver.Udata) error {
		room = len(u.Out)
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, 8, room)
	a, b := d.Udata(abi.CmdRegMR), d.Udata(abi.CmdRegMR)
	require.Len(t, a.In, 8)
	require.Len(t, a.Out, 8)
	require.NotEqual(t, a.In[0], b.In[0], "the next key is another one")
	require.Zero(t, d.Udata(abi.CmdQueryDevice))
	_, err = d.CreateAH(&verbs.AddressVector{}, nil)
	require.ErrorIs(t, err, verbs.ErrUnsupported)
}

func TestSiwCannotChangeSizes(t *testing.T) {
	s, err := new(testMemory).openSRQ(4)
	require.NoError(t, err)
	given := 0
	modify := func(in []byte) error { given++; require.Empty(t, in); return nil }
	require.ErrorIs(t, s.Modify(verbs.SRQAttr{MaxWR: 8}, verbs.SRQAttrMaxWR, modify), verbs.ErrUnsupported)
	require.Zero(t, given)
	require.NoError(t, s.Modify(verbs.SRQAttr{Limit: 1}, verbs.SRQAttrLimit, modify))
	require.Equal(t, 1, given)
	c := newCQ(t, 4)
	require.ErrorIs(t, c.Resize(8, func(int, driver.Udata) error { return errNoMapping }), errNoMapping, "what the kernel says")
}

func TestSiwPostsAnEmptyWriteUnlessTheKernelHasSomethingToLookAt(t *testing.T) {
	q, _ := newQP(t, driver.QPAttr{}, 4, 4)
	require.True(t, q.PostEmptyWrite(77))
	require.False(t, q.PostEmptyWrite(77), "the one before is there")
	sqe := kernelTakes(t, q, 0)
	require.EqualValues(t, 77, sqe.id)
	require.Equal(t, packWord(flagValid, 0, opWrite), sqe.word)
	require.True(t, q.PostEmptyWrite(77))
}

func TestSiwQPsAreMovedByTheirConnectionManager(t *testing.T) {
	const (
		reset, init, rtr, rts = verbs.QPStateReset, verbs.QPStateInit, verbs.QPStateRTR, verbs.QPStateRTS
		sqd, failed           = verbs.QPStateSQD, verbs.QPStateErr
	)
	for _, c := range []struct {
		from, to verbs.QPState
		want     error
	}{
		{reset, init, nil}, {init, init, nil}, {init, failed, nil}, {rts, failed, nil}, {failed, failed, nil}, {rts, rts, nil},
		{reset, failed, verbs.ErrInvalid},
		{init, rtr, verbs.ErrUnsupported}, {rtr, rts, verbs.ErrUnsupported}, {rts, sqd, verbs.ErrUnsupported},
		{rts, reset, verbs.ErrUnsupported}, {failed, reset, verbs.ErrUnsupported}, {failed, init, verbs.ErrUnsupported},
	} {
		require.ErrorIs(t, new(qp).MayModify(c.from, c.to), c.want, "%v to %v", c.from, c.to)
	}
}

func TestDoorbellThatSiwRefusesIsNoErrorOfThePost(t *testing.T) {
	var q qp
	stuck, err := q.Refused(syscall.ENOTCONN)
	require.NoError(t, err)
	require.False(t, stuck)
	stuck, err = q.Refused(syscall.EINVAL)
	require.NoError(t, err)
	require.True(t, stuck)
	stuck, err = q.Refused(syscall.EIO)
	require.ErrorIs(t, err, syscall.EIO)
	require.False(t, stuck)
}

func TestSiwHasNoCapabilityThatIWARPHasNot(t *testing.T) {
	var attr verbs.DeviceAttr
	new(context).Describe(&attr)
	require.True(t, attr.Caps.Has(verbs.CapRead|verbs.CapSendWithInv))
	for _, c := range []verbs.Cap{
		verbs.CapSendWithImm, verbs.CapWriteWithImm, verbs.CapAtomics, verbs.CapMemWindow, verbs.CapUC, verbs.CapUD, verbs.CapFlush, verbs.CapAtomicWrite,
	} {
		require.False(t, attr.Caps.Has(c), fmt.Sprint(c))
	}
	require.Equal(t, 80, attr.MaxInline)
	require.Equal(t, 1, attr.MaxSGERead)
}

func TestSiwPostAndPollAllocateNothing(t *testing.T) {
	q, _ := newQP(t, driver.QPAttr{}, 4, 4)
	c := newCQ(t, 4)
	send := []verbs.SendWR{{Opcode: verbs.OpSend, Flags: verbs.SendInline, Inline: [][]byte{{1, 2}}}}
	recv := []verbs.RecvWR{{SGL: []verbs.SGE{{}}}}
	wcs := make([]verbs.WC, 4)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		_, _, _ = q.PostSend(send)
		q.send.word(q.send.next - 1).Store(0)
		_, _ = q.PostRecv(recv)
		q.recv.word(q.recv.next - 1).Store(0)
		kernelCompletes(c, c.ring.next, cqEntry{}, flagValid, opReceive, 0)
		_, _ = c.Poll(wcs, nil)
		c.Arm(false)
	}))
}

// FuzzSiwCQ polls and posts over memory that holds anything, before and while
// it is used. Nothing may panic or loop, and no slot that the kernel holds may
// be written.
func FuzzSiwCQ(f *testing.F) {
	f.Add([]byte{}, []byte{}, uint8(4))
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 1, 8, 4, 0}, []byte{0, 0, 0, 0, 0, 0, 0, 0, 1}, uint8(9))
	f.Fuzz(func(t *testing.T, cq, queues []byte, rounds uint8) {
		c := newCQ(t, 4)
		copy(c.ring.mem, cq)
		wcs := make([]verbs.WC, 3)
		for range rounds {
			n, err := c.Poll(wcs, nil)
			require.NoError(t, err)
			require.LessOrEqual(t, n, len(wcs))
			for _, wc := range wcs[:n] {
				require.LessOrEqual(t, wc.Status, verbs.WCGeneralErr)
			}
			c.Arm(true)
			copy(c.ring.mem, cq) // the kernel, or whoever it is, writes again
		}

		q, _ := newQP(t, driver.QPAttr{}, 2, 2)
		for range rounds {
			copy(q.send.mem, queues)
			copy(q.recv.mem, queues)
			held := 0
			for i := range uint32(2) {
				if isValid(q.send.word(i).Load()) {
					held++
				}
			}
			n, _, err := q.PostSend([]verbs.SendWR{
				{Opcode: verbs.OpSend, Flags: verbs.SendInline, Inline: [][]byte{{1}}},
				{Opcode: verbs.OpRead, SGL: []verbs.SGE{{}}}, {Opcode: verbs.OpWrite},
			})
			require.LessOrEqual(t, n, 2-held)
			require.ErrorIs(t, err, verbs.ErrQueueFull)
			n, err = q.PostRecv(make([]verbs.RecvWR, 3))
			require.LessOrEqual(t, n, 2)
			require.ErrorIs(t, err, verbs.ErrQueueFull)
		}
	})
}
