//go:build linux

package soft

import (
	"encoding/binary"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/protocol"
	"github.com/stretchr/testify/require"
)

// victim is a QP in RTS whose peer is this test: it can write what it likes
// into the QP's own segment, and shows it a segment of its own making.
type victim struct {
	d      *device
	pd     *pd
	ch     *channel
	send   *cq
	recv   *cq
	q      *qp
	mr     *region
	peer   *segment // what the victim writes into
	faults []protocol.FaultKind
	key    *remote // the one region that the peer has
}

// The test is the peer at the other end of the link, too.
func (v *victim) lookup(key uint32) (*remote, bool) {
	if key == v.key.key {
		return v.key, true
	}
	return nil, true
}
func (v *victim) ask(uint32)                {}
func (v *victim) tell(k protocol.FaultKind) { v.faults = append(v.faults, k) }
func (v *victim) notify()                   {}
func (v *victim) drain()                    {}
func (v *victim) leave()                    {}
func (v *victim) pid() int                  { return 0 }
func (v *victim) close()                    {}

const victimKey = 0x1234

func newVictim(t testing.TB, shared bool) *victim {
	t.Helper()
	d, err := openDevice(DeviceName)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	v := &victim{d: d}
	p, err := d.AllocPD()
	require.NoError(t, err)
	v.pd = p.(*pd)
	ch, err := d.CreateCompChannel()
	require.NoError(t, err)
	v.ch = ch.(*channel)
	makeCQ := func() *cq {
		c, err := d.CreateCQ(&verbs.CQAttr{CQE: 256}, ch)
		require.NoError(t, err)
		return c.(*cq)
	}
	v.send, v.recv = makeCQ(), makeCQ()
	var s verbs.SRQDriver
	if shared {
		s, err = v.pd.CreateSRQ(&verbs.SRQAttr{MaxWR: 32, MaxSGE: 2})
		require.NoError(t, err)
	}
	q, err := v.pd.CreateQP(&verbs.QPInitAttr{
		Type: verbs.QPTypeRC, Cap: verbs.QPCap{MaxSendWR: 32, MaxRecvWR: 32, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: 1 << 20}, PlaceAtPoll: true,
	}, v.send, v.recv, s)
	require.NoError(t, err)
	v.q = q.(*qp)
	mr, err := v.pd.AllocMR(1<<16, verbs.AccessLocalWrite|protocol.RemoteRights, verbs.MROptions{})
	require.NoError(t, err)
	v.mr = mr.(*registration).region
	v.q.in.grants.add(v.mr)
	v.peer, err = d.newSegment(protocol.GeometryFor(32))
	require.NoError(t, err)
	valid := new(atomic.Uint32)
	valid.Store(victimKey)
	v.key = &remote{key: victimKey, access: protocol.RemoteRights, addr: 0x10000, mem: make([]byte, 1<<16), valid: valid}
	v.q.sendMu.Lock()
	v.q.attr.RNRRetry = 1
	v.q.attr.MinRNRTimer = 1
	v.q.attr.Access = protocol.RemoteRights
	v.q.out.open(v.peer.View, protocol.Hello{}, -1)
	v.q.out.seg = v.peer
	v.q.link = v
	v.q.setState(stateRTS)
	v.q.sendMu.Unlock()
	v.peer.Header.Gate.Store(protocol.GateOpen | protocol.GateWrite | protocol.GateRead | protocol.GateAtomic)
	v.peer.Header.Posted.Store(32)
	for i := range v.peer.Lengths {
		v.peer.Lengths[i].Store(1 << 20)
	}
	return v
}

// receive posts a receive of 4096 bytes.
func (v *victim) receive() {
	wr := []verbs.RecvWR{{ID: 1, SGL: []verbs.SGE{{Addr: v.mr.addr, Length: 4096, LKey: v.mr.key}}}}
	if v.q.srq != nil {
		_, _ = v.q.srq.PostRecv(wr) // full is fine
		return
	}
	_, _ = v.q.PostRecv(wr) // full is fine
}

// arrive puts a descriptor where the next one belongs.
func (v *victim) arrive(d descriptorCopy) {
	in := v.q.in
	e := &in.seg.Ring[in.index]
	e.Kind, e.Flags, e.Imm, e.Length, e.Total, e.Next, e.Addr = d.kind, d.flags, d.imm, d.length, d.total, d.next, d.addr
	e.Seq.Store(uint32(in.pos) + 1)
}

// write is arrive of a descriptor with data.
func (v *victim) write(d descriptorCopy, data string) {
	copy(v.q.in.seg.Ring[v.q.in.index].Data[:], data)
	v.arrive(d)
}

// arriveHonestly is arrive, and says where the ring ends.
func (v *victim) arriveHonestly(d descriptorCopy) {
	if int(v.q.in.index) == len(v.q.in.seg.Ring)-1 {
		d.flags |= protocol.FlagElsewhere
	}
	v.arrive(d)
}

func (v *victim) poll() []verbs.WC {
	wcs := make([]verbs.WC, 64)
	n, err := v.recv.Poll(wcs)
	if err != nil {
		return nil
	}
	return wcs[:n]
}

func TestLiesInDescriptorsFailTheQPAndNothingElse(t *testing.T) {
	const buf = 1 << 18
	for name, c := range map[string]struct {
		before []descriptorCopy // honest
		lie    descriptorCopy
		posted int
	}{
		"kind 0":                           {posted: 1},
		"unknown kind":                     {posted: 1, lie: descriptorCopy{kind: 200}},
		"no receive was posted":            {lie: descriptorCopy{kind: protocol.KindWriteImm}},
		"no receive for a SEND":            {lie: descriptorCopy{kind: protocol.KindSend}},
		"goes on outside of the ring":      {posted: 1, lie: descriptorCopy{kind: protocol.KindWriteImm, flags: protocol.FlagElsewhere, next: 64}},
		"goes on far outside of the ring":  {posted: 1, lie: descriptorCopy{kind: protocol.KindWriteImm, flags: protocol.FlagElsewhere, next: 1<<32 - 1}},
		"in the descriptor, but longer":    {posted: 1, lie: descriptorCopy{kind: protocol.KindSend, flags: protocol.FlagInDescriptor, length: 97, total: 97}},
		"longer than the SEND buffer":      {posted: 1, lie: descriptorCopy{kind: protocol.KindSend, length: buf + 1, total: buf + 1}},
		"across the end of the buffer":     {posted: 2, before: []descriptorCopy{{kind: protocol.KindSend, length: 64, total: 64}}, lie: descriptorCopy{kind: protocol.KindSend, length: buf, total: buf}},
		"last piece too short":             {posted: 1, lie: descriptorCopy{kind: protocol.KindSend, length: 10, total: 11}},
		"piece longer than the message":    {posted: 1, lie: descriptorCopy{kind: protocol.KindSend, length: 11, total: 10}},
		"lengths that wrap":                {posted: 1, before: []descriptorCopy{{kind: protocol.KindPiece, length: 64, total: 65}}, lie: descriptorCopy{kind: protocol.KindSend, length: 1<<32 - 1, total: 63}},
		"not the last, but all":            {posted: 1, lie: descriptorCopy{kind: protocol.KindPiece, length: 10, total: 10}},
		"piece of nothing":                 {posted: 1, lie: descriptorCopy{kind: protocol.KindPiece, length: 0, total: 10}},
		"WRITE in the middle of a SEND":    {posted: 2, before: []descriptorCopy{{kind: protocol.KindPiece, length: 64, total: 200}}, lie: descriptorCopy{kind: protocol.KindWriteImm}},
		"invalidation of a key not ours":   {posted: 1, lie: descriptorCopy{kind: protocol.KindSendInv, imm: 77}},
		"total that changes in the middle": {posted: 1, before: []descriptorCopy{{kind: protocol.KindPiece, length: 64, total: 200}}, lie: descriptorCopy{kind: protocol.KindSend, length: 64, total: 100}},
	} {
		t.Run(name, func(t *testing.T) {
			v := newVictim(t, false)
			for range c.posted {
				v.receive()
			}
			for _, d := range c.before {
				v.arrive(d)
				for _, wc := range v.poll() {
					require.Equal(t, verbs.WCSuccess, wc.Status)
				}
			}
			v.arrive(c.lie)
			v.poll()
			require.Equal(t, stateErr, v.q.state.Load())
			for _, wc := range v.poll() {
				require.NotEqual(t, verbs.WCSuccess, wc.Status)
			}
			require.Len(t, v.faults, 1, "the peer is told")
			ev, err := v.d.NextEvent()
			require.NoError(t, err)
			require.Equal(t, v.q.num, ev.QPN)
		})
	}
}

// A WRITE that comes in its descriptor goes where the peer may write, and nowhere else.
func TestAWriteInADescriptorIsPlacedWhereItMayBe(t *testing.T) {
	const at = 16
	for name, c := range map[string]struct {
		lie    func(t *testing.T, v *victim, d *descriptorCopy)
		placed bool
	}{
		"of a few bytes":        {lie: func(*testing.T, *victim, *descriptorCopy) {}, placed: true},
		"in front of the MR":    {lie: func(_ *testing.T, v *victim, d *descriptorCopy) { d.addr = v.mr.addr - 1 }},
		"across its end":        {lie: func(_ *testing.T, v *victim, d *descriptorCopy) { d.addr = v.mr.addr + uint64(len(v.mr.mem)) - 3 }},
		"at the end of memory":  {lie: func(_ *testing.T, v *victim, d *descriptorCopy) { d.addr = 1<<64 - 2 }},
		"longer than its place": {lie: func(_ *testing.T, v *victim, d *descriptorCopy) { d.length = protocol.InlinePayload + 1 }},
		"with an unknown key":   {lie: func(_ *testing.T, v *victim, d *descriptorCopy) { d.total = v.mr.key + 1 }},
		"with a key taken away": {lie: func(_ *testing.T, v *victim, _ *descriptorCopy) { v.mr.invalidate() }},
		"of an MR that is gone": {lie: func(t *testing.T, v *victim, _ *descriptorCopy) {
			v.receive()
			v.arrive(descriptorCopy{kind: protocol.KindWriteImm, flags: protocol.FlagInDescriptor, length: 4, total: v.mr.key, addr: v.mr.addr})
			require.Len(t, v.poll(), 1) // and it is remembered
			require.NoError(t, v.mr.Deregister())
		}},
		"to an MR whose key the peer was not given": {lie: func(t *testing.T, v *victim, d *descriptorCopy) {
			mr, err := v.pd.AllocMR(4096, verbs.AccessLocalWrite|verbs.AccessRemoteWrite, verbs.MROptions{})
			require.NoError(t, err)
			d.addr, d.total = mr.Addr(), mr.RKey()
		}},
		"to memory that is only read": {lie: func(t *testing.T, v *victim, d *descriptorCopy) {
			mr, err := v.pd.AllocMR(4096, verbs.AccessLocalWrite|verbs.AccessRemoteRead, verbs.MROptions{})
			require.NoError(t, err)
			v.q.in.grants.add(mr.(*registration).region)
			d.addr, d.total = mr.Addr(), mr.RKey()
		}},
		"to an MR of another PD": {lie: func(t *testing.T, v *victim, d *descriptorCopy) {
			pd, err := v.d.AllocPD()
			require.NoError(t, err)
			mr, err := pd.AllocMR(4096, verbs.AccessLocalWrite|verbs.AccessRemoteWrite, verbs.MROptions{})
			require.NoError(t, err)
			v.q.in.grants.add(mr.(*registration).region)
			d.addr, d.total = mr.Addr(), mr.RKey()
		}},
		"to a QP that takes none": {lie: func(_ *testing.T, v *victim, _ *descriptorCopy) { v.q.atPoll = false }},
	} {
		t.Run(name, func(t *testing.T) {
			v := newVictim(t, false)
			v.receive()
			d := descriptorCopy{kind: protocol.KindWriteImm, flags: protocol.FlagInDescriptor, imm: 9, length: 4, total: v.mr.key, addr: v.mr.addr + at}
			c.lie(t, v, &d)
			mem := v.mr.mem
			v.write(d, "abcd")
			wcs := v.poll()
			if c.placed {
				require.Len(t, wcs, 1)
				require.Equal(t, verbs.WC{ID: 1, Opcode: verbs.WCRecvWriteWithImm, Flags: verbs.WCWithImm, ByteLen: 4, Imm: 9, QPN: v.q.num}, wcs[0])
				require.Equal(t, "\x00abcd\x00", string(mem[at-1:at+5]))
				return
			}
			require.Equal(t, stateErr, v.q.state.Load())
			for _, wc := range append(wcs, v.poll()...) {
				require.NotEqual(t, verbs.WCSuccess, wc.Status)
			}
			require.Len(t, v.faults, 1, "the peer is told")
			ev, err := v.d.NextEvent()
			require.NoError(t, err)
			require.Equal(t, v.q.num, ev.QPN)
		})
	}
}

// The last entry does not say where the next one is.
func TestAPeerThatLeavesItsRingFailsTheQP(t *testing.T) {
	v := newVictim(t, false)
	for v.q.state.Load() != stateErr {
		require.Less(t, v.q.in.pos, uint64(len(v.q.in.seg.Ring)), "it goes on")
		v.receive()
		v.arrive(descriptorCopy{kind: protocol.KindWriteImm})
		require.Len(t, v.poll(), 1)
	}
	for range 3 { // the last of them ask the ring without the lock
		for _, wc := range v.poll() {
			require.NotEqual(t, verbs.WCSuccess, wc.Status)
		}
	}
	require.Zero(t, v.recv.work.Load())
}

func TestLiesInCountersFailTheQP(t *testing.T) {
	for name, lie := range map[string]func(h *protocol.Header){
		"more receives than the ring has": func(h *protocol.Header) { h.Posted.Store(1 << 40) },
		"receives taken back":             func(h *protocol.Header) { h.Posted.Store(0) },
		"consumed what was not sent":      func(h *protocol.Header) { h.Consumed.Store(1000) },
		"consumed less than before":       func(h *protocol.Header) { h.Consumed.Store(^uint64(0)) },
		"released what was not sent":      func(h *protocol.Header) { h.Released.Store(64) },
	} {
		t.Run(name, func(t *testing.T) {
			v := newVictim(t, false)
			wr := []verbs.SendWR{{ID: 3, Opcode: verbs.OpSend}}
			_, err := v.q.PostSend(wr)
			require.NoError(t, err)
			lie(v.peer.Header)
			_, err = v.q.PostSend(wr)
			require.NoError(t, err)
			require.Equal(t, stateErr, v.q.state.Load())
			wcs := make([]verbs.WC, 2)
			n, err := v.send.Poll(wcs)
			require.NoError(t, err)
			require.Equal(t, 1, n)
			require.Equal(t, verbs.WCBadRespErr, wcs[0].Status)
		})
	}
}

func TestASeqThatIsNotDuePublishesNothing(t *testing.T) {
	v := newVictim(t, false)
	v.receive()
	for _, seq := range []uint32{2, 5, 1<<32 - 1} {
		v.arrive(descriptorCopy{kind: protocol.KindWriteImm, imm: 7})
		v.q.in.seg.Ring[0].Seq.Store(seq)
		require.Empty(t, v.poll())
	}
	v.arrive(descriptorCopy{kind: protocol.KindWriteImm, imm: 7})
	require.Len(t, v.poll(), 1)
}

// FuzzHostileSegment lets a peer write anything anywhere into the memory that
// it shares with us, while we go on as usual. Nothing may panic, hang, or come
// out of Poll that was not posted.
func FuzzHostileSegment(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16})
	for op := range byte(fuzzOps) {
		f.Add([]byte{fuzzReceive, op, 1, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, fuzzPoll, fuzzPoll})
		f.Add([]byte{0x80, op, 5, 0, 64, 0, 0, 0, 200, 0, 0, 0, fuzzPoll, op, 2, 0, 136, 0, 0, 0, 200, 0, 0, 0, fuzzPoll, fuzzDrain})
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) > 400 {
			return // long scripts find nothing that short ones do not
		}
		watchdog := time.AfterFunc(10*time.Second, func() { panic("a peer has made us hang") })
		defer watchdog.Stop()
		v := newVictim(t, len(script) > 0 && script[0]&0x80 != 0)
		posted, completed := 0, 0
		in := v.q.in
		for len(script) > 0 {
			op := script[0] & 0x7f % fuzzOps
			script = script[1:]
			arg := func(n int) uint64 {
				var b [8]byte
				used := copy(b[:n], script)
				script = script[used:]
				return binary.LittleEndian.Uint64(b[:])
			}
			switch op {
			case fuzzReceive:
				v.receive()
				posted++
			case fuzzPoll:
				completed += len(v.poll())
			case fuzzArm:
				_ = v.recv.Arm(arg(1)&1 != 0) // the error of a closed object
			case fuzzDrain:
				v.q.drain()
			case fuzzWrite:
				at, val := arg(3)%uint64(len(in.seg.mem)-8), arg(8)
				binary.LittleEndian.PutUint64(in.seg.mem[at:], val)
			case fuzzHeader:
				at, val := arg(1)*4, arg(4)
				binary.LittleEndian.PutUint32(in.seg.mem[at:], uint32(val))
			case fuzzPeerHeader:
				at, val := arg(1)*4, arg(4)
				binary.LittleEndian.PutUint32(v.peer.mem[at:], uint32(val))
			case fuzzSend:
				v.fuzzPost(arg(1), int(arg(3)))
			case fuzzWait:
				// an end without event is one too
				_ = v.ch.WaitThread(time.Now().Add(time.Microsecond))
			case fuzzArrive:
				d := descriptorCopy{
					kind: uint8(arg(1)), flags: uint8(arg(1)), imm: uint32(arg(1)), length: uint32(arg(4)), total: uint32(arg(4)),
				}
				if d.kind == protocol.KindWriteImm { // of our region, about its end
					d.addr, d.total = v.mr.addr+uint64(len(v.mr.mem))-uint64(d.total%256), v.mr.key
				}
				v.arrive(d)
			}
		}
		completed += len(v.poll())
		require.LessOrEqual(t, completed, posted, "completions without receives")
	})
}

const (
	fuzzReceive = iota
	fuzzPoll
	fuzzArm
	fuzzDrain
	fuzzWrite
	fuzzHeader
	fuzzPeerHeader
	fuzzSend
	fuzzWait
	fuzzArrive
	fuzzOps
)

// fuzzPost posts a request of some kind.
func (v *victim) fuzzPost(kind uint64, n int) {
	ops := []verbs.Opcode{
		verbs.OpSend, verbs.OpSendWithImm, verbs.OpSendWithInv, verbs.OpWrite, verbs.OpWriteWithImm, verbs.OpRead,
		verbs.OpFetchAdd, verbs.OpCompareSwap,
	}
	op := ops[kind%uint64(len(ops))]
	n %= 1 << 20
	wr := verbs.SendWR{Opcode: op, RKey: victimKey, InvalidateRKey: victimKey, RemoteAddr: v.key.addr + uint64(n%4096)*8, Flags: verbs.SendInline | verbs.SendSignaled}
	switch op {
	case verbs.OpRead, verbs.OpFetchAdd, verbs.OpCompareSwap:
		wr.Flags = verbs.SendSignaled
		wr.SGL = []verbs.SGE{{Addr: v.mr.addr, Length: 8, LKey: v.mr.key}}
	default:
		wr.Inline = [][]byte{make([]byte, n)}
	}
	_, _ = v.q.PostSend([]verbs.SendWR{wr}) // full is fine
	_, _ = v.send.Poll(make([]verbs.WC, 16))
}

// liar answers each question about a key with a region that has no key.
type liar struct {
	*victim
	asked int
}

func (l *liar) lookup(uint32) (*remote, bool) { return nil, false }
func (l *liar) ask(uint32)                    { l.asked++ }

func TestAPeerIsNotAskedForEver(t *testing.T) {
	v := newVictim(t, false)
	l := &liar{victim: v}
	v.q.sendMu.Lock()
	v.q.link = l
	v.q.sendMu.Unlock()
	_, err := v.q.PostSend([]verbs.SendWR{{
		Opcode: verbs.OpWrite, Flags: verbs.SendSignaled | verbs.SendInline, Inline: [][]byte{{1}}, RemoteAddr: 0x10000, RKey: 7,
	}})
	require.NoError(t, err)
	for answered := 0; answered < l.asked; answered++ {
		require.LessOrEqual(t, l.asked, maxAsks)
		v.q.learn(l, 7, &remote{key: 7, access: protocol.RemoteRights, addr: 0x10000, mem: make([]byte, 8)}, nil)
	}
	var wcs [2]verbs.WC
	n, err := v.send.Poll(wcs[:])
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, verbs.WCRemAccessErr, wcs[0].Status)
}

// Wherever a descriptor leads, little memory is taken for it.
func TestADescriptorThatLeadsFarCostsLittleMemory(t *testing.T) {
	v := newVictim(t, false)
	seg, err := v.d.newSegment(protocol.GeometryFor(protocol.MaxReceives))
	require.NoError(t, err)
	t.Cleanup(seg.release)
	in := newInbound(v.q, seg)
	require.True(t, in.leap(protocol.FlagElsewhere, uint32(len(seg.Ring))-1))
	pages, err := PagesOfMapping(protocol.PagesWithin(seg.Ring, 0, uint32(len(seg.Ring))))
	require.NoError(t, err)
	resident := 0
	for _, p := range pages {
		resident += int(p & 1)
	}
	require.LessOrEqual(t, resident*protocol.PageSize, 2*protocol.PagesAtOnce)
}

// Pieces give no completion, and so a poll goes on with them; but no honest peer has more on its way
// than the ring has entries.
func TestAPollTakesNoMorePiecesThanTheRingHolds(t *testing.T) {
	v := newVictim(t, false)
	v.receive()
	in := v.q.in
	taken := 0
	for ok := true; ok && taken <= 4096; taken++ {
		d := &in.seg.Ring[in.index]
		v.arriveHonestly(descriptorCopy{kind: protocol.KindPiece, flags: protocol.FlagInDescriptor, length: 1, total: 4096})
		var wc verbs.WC
		if _, ok = in.takeOther(d, &wc); ok {
			require.True(t, in.step(d))
		}
	}
	require.Equal(t, len(in.seg.Ring)+1, taken)
	require.True(t, in.closed)
}

// What a QP that has failed leaves in its ring is no completion that an event would be due for.
func TestWhatAFailedQPLeavesIsNotWaitedFor(t *testing.T) {
	v := newVictim(t, false)
	v.arrive(descriptorCopy{kind: protocol.KindWriteImm}) // there is no receive
	require.Empty(t, v.poll())
	require.Empty(t, v.poll())
	require.Zero(t, v.recv.lockedWaiting(1))
}
