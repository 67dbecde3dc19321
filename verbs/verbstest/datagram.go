package verbstest

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

const (
	datagramQKey = 0x11223344
	grhSize      = verbs.GRHSize
)

// other replaces the QP of s by one of another service, and brings it to INIT.
func (s *side) other(typ verbs.QPType) {
	s.t.Helper()
	need := verbs.CapUD
	if typ == verbs.QPTypeUC {
		need = verbs.CapUC
	}
	if !s.ctx.Attr().Caps.Has(need) {
		s.t.Skip("the device has no such service")
	}
	require.NoError(s.t, s.qp.Close())
	var err error
	s.qp, err = s.pd.CreateQP(verbs.QPInitAttr{Type: typ, SendCQ: s.send, RecvCQ: s.recv, SingleThreaded: s.conf.single, Cap: s.conf.cap})
	require.NoError(s.t, err)
	attr := verbs.QPAttr{State: verbs.QPStateInit, Port: 1, QKey: datagramQKey, Access: everyRight}
	mask := verbs.QPAttrState | verbs.QPAttrPKeyIndex | verbs.QPAttrPort
	if typ == verbs.QPTypeUD {
		mask |= verbs.QPAttrQKey
	} else {
		mask |= verbs.QPAttrAccess
	}
	require.NoError(s.t, s.qp.Modify(attr, mask))
}

// datagrams makes two sides with UD QPs in RTS.
func (s *suite) datagrams(t *testing.T) (a, b *side) {
	t.Helper()
	a, b = s.sides(t, usual)
	for _, end := range []*side{a, b} {
		end.other(verbs.QPTypeUD)
		end.toDatagramRTS()
	}
	return a, b
}

// toDatagramRTS brings a UD QP to RTS, from RESET or INIT.
func (s *side) toDatagramRTS() {
	s.t.Helper()
	attr, err := s.qp.Query()
	require.NoError(s.t, err)
	if attr.State == verbs.QPStateReset {
		require.NoError(s.t, s.qp.Modify(verbs.QPAttr{State: verbs.QPStateInit, Port: 1, QKey: datagramQKey},
			verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrQKey))
	}
	require.NoError(s.t, s.qp.Modify(verbs.QPAttr{State: verbs.QPStateRTR}, verbs.QPAttrState))
	require.NoError(s.t, s.qp.Modify(verbs.QPAttr{State: verbs.QPStateRTS, SQPSN: 7}, verbs.QPAttrState|verbs.QPAttrSQPSN))
}

// testDatagrams sends from UD QPs to others.
func testDatagrams(t *testing.T, s *suite) {
	t.Run("messages go to and fro by address handles", func(t *testing.T) {
		a, b := s.datagrams(t)
		for i, way := range [][2]*side{{a, b}, {b, a}, {a, b}} {
			from, to := way[0], way[1]
			vector := from.vectorTo(to)
			vector.SL = 3
			ah, err := from.pd.CreateAH(vector)
			require.NoError(t, err)
			want := pattern(from.mr.Bytes()[:500], byte(i))
			to.receive(verbs.RecvWR{ID: 9, SGL: []verbs.SGE{to.mr.SGE(1<<20, grhSize+500)}})
			from.post(verbs.SendWR{
				ID: 8, Opcode: verbs.OpSendWithImm, Imm: 0xcafe, Flags: verbs.SendSignaled, SGL: []verbs.SGE{from.mr.SGE(0, 500)},
				Datagram: &verbs.Datagram{AH: ah, QPN: to.qp.Num(), QKey: datagramQKey},
			})
			from.sent(8, verbs.WCSuccess)
			wc := to.received(9, verbs.WCSuccess)
			require.EqualValues(t, grhSize+500, wc.ByteLen)
			require.Equal(t, from.lid, wc.SLID, "0 on Ethernet")
			if from.lid != 0 {
				require.EqualValues(t, 3, wc.SL)
				require.Zero(t, wc.PathBits, "its port has one LID")
			} else {
				require.Zero(t, wc.SL, "without a LID")
			}
			require.Equal(t, verbs.WCGRH|verbs.WCWithImm, wc.Flags)
			require.EqualValues(t, 0xcafe, wc.Imm)
			require.Equal(t, from.qp.Num(), wc.SrcQPN)
			require.Equal(t, want, to.mr.Bytes()[1<<20+grhSize:][:500])
			require.NoError(t, ah.Close())
		}
	})
	t.Run("an answer goes back by what came", func(t *testing.T) {
		a, b := s.datagrams(t)
		ah, err := a.pd.CreateAH(a.vectorTo(b))
		require.NoError(t, err)
		b.receive(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{b.mr.SGE(0, 100)}})
		a.receive(verbs.RecvWR{ID: 2, SGL: []verbs.SGE{a.mr.SGE(0, 100)}})
		send := func(from *side, ah *verbs.AH, qpn uint32, text string) {
			from.post(verbs.SendWR{
				ID: 3, Opcode: verbs.OpSend, Flags: verbs.SendSignaled | verbs.SendInline, Inline: [][]byte{[]byte(text)},
				Datagram: &verbs.Datagram{AH: ah, QPN: qpn, QKey: datagramQKey},
			})
			from.sent(3, verbs.WCSuccess)
		}
		send(a, ah, b.qp.Num(), "question")
		wc := b.received(1, verbs.WCSuccess)
		way, err := b.ctx.ReplyAddress(&wc, b.mr.Bytes(), 1)
		require.NoError(t, err)
		require.Equal(t, a.gid.GID, way.DGID)
		require.EqualValues(t, b.gid.Index, way.SGIDIndex)
		back, err := b.pd.CreateReplyAH(&wc, b.mr.Bytes(), 1)
		require.NoError(t, err)
		send(b, back, wc.SrcQPN, "answer")
		require.Equal(t, b.qp.Num(), a.received(2, verbs.WCSuccess).SrcQPN)
		require.Equal(t, "answer", string(a.mr.Bytes()[grhSize:][:6]))
		_, err = b.ctx.ReplyAddress(&wc, b.mr.Bytes()[:grhSize-1], 1)
		require.ErrorIs(t, err, verbs.ErrInvalid)
		_, err = b.pd.CreateReplyAH(&wc, b.mr.Bytes(), 0)
		require.ErrorIs(t, err, verbs.ErrInvalid)
	})
	t.Run("a message that comes ends the wait", func(t *testing.T) {
		a, b := s.datagrams(t)
		ah, err := a.pd.CreateAH(a.vectorTo(b))
		require.NoError(t, err)
		b.receive(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{b.mr.SGE(0, grhSize)}})
		require.NoError(t, b.recv.Arm(false))
		go func() {
			time.Sleep(2 * time.Millisecond)
			_, _ = a.qp.PostSend([]verbs.SendWR{{ // the wait shows whether it worked
				ID: 2, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Datagram: &verbs.Datagram{AH: ah, QPN: b.qp.Num(), QKey: datagramQKey},
			}})
		}()
		require.NoError(t, b.ch.Wait(time.Now().Add(patience)))
		b.received(1, verbs.WCSuccess)
		a.sent(2, verbs.WCSuccess)
	})
	t.Run("a message may be empty", func(t *testing.T) {
		a, b := s.datagrams(t)
		ah, err := a.pd.CreateAH(a.vectorTo(b))
		require.NoError(t, err)
		b.receive(verbs.RecvWR{ID: 9, SGL: []verbs.SGE{b.mr.SGE(0, grhSize)}})
		a.post(verbs.SendWR{
			ID: 8, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Datagram: &verbs.Datagram{AH: ah, QPN: b.qp.Num(), QKey: datagramQKey},
		})
		a.sent(8, verbs.WCSuccess)
		require.EqualValues(t, grhSize, b.received(9, verbs.WCSuccess).ByteLen)
	})
	t.Run("a message with the wrong key, or without receive, is dropped", func(t *testing.T) {
		dropped(t, func(wait time.Duration) bool {
			a, b := s.datagrams(t)
			ah, err := a.pd.CreateAH(a.vectorTo(b))
			require.NoError(t, err)
			wr := verbs.SendWR{
				ID: 1, Opcode: verbs.OpSend, Flags: verbs.SendSignaled | verbs.SendInline, Inline: [][]byte{[]byte("early")},
				Datagram: &verbs.Datagram{AH: ah, QPN: b.qp.Num(), QKey: datagramQKey},
			}
			a.post(wr)
			a.sent(1, verbs.WCSuccess)
			time.Sleep(wait)
			b.receive(verbs.RecvWR{ID: 3, SGL: []verbs.SGE{b.mr.SGE(0, 100)}})
			wr.ID, wr.Datagram.QKey, wr.Inline[0] = 2, datagramQKey+1, []byte("wrong")
			a.post(wr)
			a.sent(2, verbs.WCSuccess)
			wr.ID, wr.Datagram.QKey, wr.Inline[0] = 4, datagramQKey, []byte("found")
			a.post(wr)
			a.sent(4, verbs.WCSuccess)
			b.received(3, verbs.WCSuccess)
			got := string(b.mr.Bytes()[grhSize:][:5])
			require.NotEqual(t, "wrong", got)
			b.silent(b.recv)
			return got == "found"
		})
	})
	t.Run("a privileged Q_Key in a request stands for that of the QP", func(t *testing.T) {
		a, b := s.datagrams(t)
		if a.pair.Lacks&LackPrivilegedQKey != 0 {
			t.Skip("this device sends the key as it is")
		}
		ah, err := a.pd.CreateAH(a.vectorTo(b))
		require.NoError(t, err)
		b.receive(verbs.RecvWR{ID: 3, SGL: []verbs.SGE{b.mr.SGE(0, 100)}})
		a.post(verbs.SendWR{
			ID: 1, Opcode: verbs.OpSend, Flags: verbs.SendSignaled | verbs.SendInline, Inline: [][]byte{[]byte("privileged")},
			Datagram: &verbs.Datagram{AH: ah, QPN: b.qp.Num(), QKey: 1<<31 | 5},
		})
		a.sent(1, verbs.WCSuccess)
		b.received(3, verbs.WCSuccess)
		require.Equal(t, "privileged", string(b.mr.Bytes()[grhSize:][:10]))
	})
	t.Run("a request of its own that fails stops the send queue until RTS", func(t *testing.T) {
		a, b := s.datagrams(t)
		ah, err := a.pd.CreateAH(a.vectorTo(b))
		require.NoError(t, err)
		back, err := b.pd.CreateAH(b.vectorTo(a))
		require.NoError(t, err)
		send := func(ah *verbs.AH, from, to *side) verbs.SendWR {
			return verbs.SendWR{
				ID: 1, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{from.mr.SGE(0, 8)},
				Datagram: &verbs.Datagram{AH: ah, QPN: to.qp.Num(), QKey: datagramQKey},
			}
		}
		stopsInSQE(t, a, send(ah, a, b), func() {
			a.receive(verbs.RecvWR{ID: 2, SGL: []verbs.SGE{a.mr.SGE(0, 100)}})
			b.post(send(back, b, a))
			b.sent(1, verbs.WCSuccess)
			a.received(2, verbs.WCSuccess)
		})
	})
	t.Run("the receives of an SRQ take messages too", func(t *testing.T) {
		a, b := s.datagrams(t)
		if !b.ctx.Attr().Caps.Has(verbs.CapSRQ) {
			t.Skip("the device has no SRQs")
		}
		require.NoError(t, b.qp.Close())
		var err error
		b.srq, err = b.pd.CreateSRQ(verbs.SRQAttr{MaxWR: 4, MaxSGE: 1})
		require.NoError(t, err)
		b.qp, err = b.pd.CreateQP(verbs.QPInitAttr{
			Type: verbs.QPTypeUD, SendCQ: b.send, RecvCQ: b.recv, SRQ: b.srq, SingleThreaded: b.conf.single, Cap: verbs.QPCap{MaxSendWR: 1, MaxSendSGE: 1},
		})
		require.NoError(t, err)
		b.toDatagramRTS()
		ah, err := a.pd.CreateAH(a.vectorTo(b))
		require.NoError(t, err)
		for id := range uint64(8) {
			b.receive(verbs.RecvWR{ID: id, SGL: []verbs.SGE{b.mr.SGE(0, 100)}})
			a.post(verbs.SendWR{
				ID: 1, Opcode: verbs.OpSend, Flags: verbs.SendSignaled | verbs.SendInline, Inline: [][]byte{{byte(id)}},
				Datagram: &verbs.Datagram{AH: ah, QPN: b.qp.Num(), QKey: datagramQKey},
			})
			a.sent(1, verbs.WCSuccess)
			b.received(id, verbs.WCSuccess)
			require.Equal(t, byte(id), b.mr.Bytes()[grhSize])
		}
	})
	t.Run("what is sent to a group comes to its members", func(t *testing.T) {
		a, b := s.datagrams(t)
		if !b.ctx.Attr().Caps.Has(verbs.CapMulticast) {
			require.ErrorIs(t, b.qp.AttachMulticast(verbs.GID{0: 0xff}, 0), verbs.ErrUnsupported)
			t.Skip("the device has no multicast")
		}
		group := b.joinedGroup()
		require.ErrorIs(t, b.qp.AttachMulticast(b.gid.GID, 0), verbs.ErrInvalid, "no group")
		lid := uint16(0)
		if b.lid != 0 {
			lid = 0xc077 // the subnet manager would give one to the group
		}
		require.NoError(t, b.qp.AttachMulticast(group, lid))
		vector := a.vectorTo(b)
		vector.DGID, vector.DLID = group, lid
		ah, err := a.pd.CreateAH(vector)
		require.NoError(t, err)
		send := func(text string) {
			a.post(verbs.SendWR{
				ID: 1, Opcode: verbs.OpSend, Flags: verbs.SendSignaled | verbs.SendInline, Inline: [][]byte{[]byte(text)},
				Datagram: &verbs.Datagram{AH: ah, QPN: 1<<24 - 1, QKey: datagramQKey},
			})
			a.sent(1, verbs.WCSuccess)
		}
		b.receive(verbs.RecvWR{ID: 3, SGL: []verbs.SGE{b.mr.SGE(0, 100)}}, verbs.RecvWR{ID: 4, SGL: []verbs.SGE{b.mr.SGE(100, 100)}})
		a.receive(verbs.RecvWR{ID: 5, SGL: []verbs.SGE{a.mr.SGE(0, 100)}})
		send("member")
		b.received(3, verbs.WCSuccess)
		require.Equal(t, "member", string(b.mr.Bytes()[grhSize:][:6]))
		require.NoError(t, b.qp.DetachMulticast(group, lid))
		require.ErrorIs(t, b.qp.DetachMulticast(group, lid), verbs.ErrInvalid, "it is no member")
		send("no more")
		b.silent(b.recv)
		a.silent(a.recv) // who sends is no member
		require.NoError(t, b.qp.AttachMulticast(group, lid))
		require.NoError(t, b.qp.Close(), "a member")
	})
	t.Run("what is no SEND with a destination is refused", func(t *testing.T) {
		a, b := s.datagrams(t)
		_, err := a.qp.PostSend([]verbs.SendWR{a.write(b.mr.Addr(), b.mr.RKey(), 8)})
		require.ErrorIs(t, err, verbs.ErrInvalid)
		_, err = a.qp.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend}})
		require.ErrorIs(t, err, verbs.ErrInvalid)
	})
	t.Run("a PD with an address handle cannot be closed", func(t *testing.T) {
		a, b := s.datagrams(t)
		pd, err := a.ctx.AllocPD()
		require.NoError(t, err)
		ah, err := pd.CreateAH(a.vectorTo(b))
		require.NoError(t, err)
		require.ErrorIs(t, pd.Close(), verbs.ErrBusy)
		require.NoError(t, ah.Close())
		require.NoError(t, pd.Close())
	})
}

// joinedGroup returns the GID of a multicast group that the port of s has joined. On RoCE the group
// is one of the same version of IP as the GID of s, and a UDP socket joins it.
func (s *side) joinedGroup() verbs.GID {
	s.t.Helper()
	group := verbs.GID{0: 0xff, 1: 0x0e, 15: 0x77}
	if s.gid.Type != verbs.GIDTypeRoCEv2 {
		return group
	}
	if netip.AddrFrom16(s.gid.GID).Is4In6() {
		group = netip.MustParseAddr("::ffff:239.1.2.77").As16()
	}
	netdev, err := net.InterfaceByName(s.gid.Netdev)
	require.NoError(s.t, err)
	conn, err := net.ListenMulticastUDP("udp", netdev, &net.UDPAddr{IP: group[:]})
	require.NoError(s.t, err)
	s.t.Cleanup(func() { require.NoError(s.t, conn.Close()) })
	return group
}

// testUnreliable sends over UC QPs, which have no acknowledgements.
func testUnreliable(t *testing.T, s *suite) {
	connected := func(t *testing.T) (a, b *side) {
		t.Helper()
		a, b = s.sides(t, usual)
		for _, way := range [][2]*side{{a, b}, {b, a}} {
			way[0].other(verbs.QPTypeUC)
		}
		for _, way := range [][2]*side{{a, b}, {b, a}} {
			end, peer := way[0], way[1]
			require.NoError(t, end.qp.Modify(verbs.QPAttr{
				State: verbs.QPStateRTR, PathMTU: verbs.MTU1024, DestQPN: peer.qp.Num(), RQPSN: 100, AV: end.vectorTo(peer),
			}, verbs.QPAttrState|verbs.QPAttrAV|verbs.QPAttrPathMTU|verbs.QPAttrDestQPN|verbs.QPAttrRQPSN))
			require.NoError(t, end.qp.Modify(verbs.QPAttr{State: verbs.QPStateRTS, SQPSN: 100}, verbs.QPAttrState|verbs.QPAttrSQPSN))
		}
		return a, b
	}
	t.Run("WRITE_WITH_IMM and SEND arrive", func(t *testing.T) {
		a, b := connected(t)
		want := pattern(a.mr.Bytes()[:5000], 2)
		b.receive(verbs.RecvWR{ID: 1}, verbs.RecvWR{ID: 2, SGL: []verbs.SGE{b.mr.SGE(1<<20, 5000)}})
		wr := a.write(b.mr.Addr(), b.mr.RKey(), 5000)
		wr.Opcode, wr.Imm = verbs.OpWriteWithImm, 77
		a.post(wr, verbs.SendWR{ID: 51, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{a.mr.SGE(0, 5000)}})
		a.sent(50, verbs.WCSuccess)
		a.sent(51, verbs.WCSuccess)
		require.EqualValues(t, 77, b.received(1, verbs.WCSuccess).Imm)
		b.received(2, verbs.WCSuccess)
		require.Equal(t, want, b.mr.Bytes()[:5000])
		require.Equal(t, want, b.mr.Bytes()[1<<20:][:5000])
	})
	t.Run("a message that finds no receive is lost, and nothing else", func(t *testing.T) {
		dropped(t, func(wait time.Duration) bool {
			a, b := connected(t)
			a.post(verbs.SendWR{ID: 1, Opcode: verbs.OpSendWithImm, Imm: 1, Flags: verbs.SendSignaled})
			a.sent(1, verbs.WCSuccess)
			time.Sleep(wait)
			b.receive(verbs.RecvWR{ID: 2})
			a.post(verbs.SendWR{ID: 3, Opcode: verbs.OpSendWithImm, Imm: 3, Flags: verbs.SendSignaled})
			a.sent(3, verbs.WCSuccess)
			imm := b.received(2, verbs.WCSuccess).Imm
			b.silent(b.recv)
			return imm == 3
		})
	})
	t.Run("what UC has no opcode for is refused", func(t *testing.T) {
		a, b := connected(t)
		for _, op := range []verbs.Opcode{verbs.OpRead, verbs.OpCompareSwap, verbs.OpFetchAdd, verbs.OpFlush, verbs.OpAtomicWrite, verbs.OpSendWithInv} {
			wr := a.write(b.mr.Addr(), b.mr.RKey(), 8)
			wr.Opcode, wr.InvalidateRKey = op, b.mr.RKey()
			n, err := a.qp.PostSend([]verbs.SendWR{wr})
			require.Zero(t, n)
			require.True(t, errors.Is(err, verbs.ErrInvalid) || errors.Is(err, verbs.ErrUnsupported), "%v: %v", op, err)
		}
	})
	t.Run("a request of its own that fails stops the send queue until RTS", func(t *testing.T) {
		a, b := connected(t)
		wr := a.write(b.mr.Addr(), b.mr.RKey(), 8)
		back := b.write(a.mr.Addr(), a.mr.RKey(), 8)
		stopsInSQE(t, a, wr, func() {
			b.post(back)
			b.sent(back.ID, verbs.WCSuccess)
		})
	})
}

// stopsInSQE makes requests of s fail, and goes on. A few more fail than the send
// queue has room for. wr is one that does not, receives uses the QP the other way round.
func stopsInSQE(t *testing.T, s *side, wr verbs.SendWR, receives func()) {
	t.Helper()
	bad := wr
	bad.SGL = []verbs.SGE{{Addr: s.mr.Addr(), Length: 8, LKey: s.mr.LKey() ^ 0x100}}
	for range usual.cap.MaxSendWR / 2 {
		s.post(bad)
		s.sent(bad.ID, verbs.WCLocProtErr)
		if s.leaves(verbs.QPStateRTS) == verbs.QPStateErr {
			s.goesToErr()
			t.Skip("this device takes the QP to ERR")
		}
		s.post(wr)
		s.sent(wr.ID, verbs.WCWRFlushErr)
		receives()
		require.NoError(t, s.qp.Modify(verbs.QPAttr{State: verbs.QPStateRTS}, verbs.QPAttrState))
		s.post(wr)
		s.sent(wr.ID, verbs.WCSuccess)
	}

	s.post(bad)
	s.sent(bad.ID, verbs.WCLocProtErr)
	require.NoError(t, s.qp.Modify(verbs.QPAttr{State: verbs.QPStateRTS}, verbs.QPAttrState), "its state was not asked for")
	s.post(wr)
	s.sent(wr.ID, verbs.WCSuccess)

	room := s.qp.Attr().Cap.MaxSendWR
	full := func() {
		t.Helper()
		if s.pair.Lacks&LackBoundAfterSQE != 0 {
			return
		}
		_, err := s.qp.PostSend([]verbs.SendWR{wr})
		require.ErrorIs(t, err, verbs.ErrQueueFull, "completions that nobody has polled hold their slots")
	}
	s.post(bad)
	for range room - 1 {
		s.post(wr)
	}
	require.Equal(t, verbs.QPStateSQE, s.leaves(verbs.QPStateRTS))
	require.NoError(t, s.qp.Modify(verbs.QPAttr{State: verbs.QPStateRTS}, verbs.QPAttrState))
	full()
	s.sent(bad.ID, verbs.WCLocProtErr)
	for range room - 1 { // flushed in SQE, or executed after it
		require.Equal(t, wr.ID, s.poll(s.send, 1)[0].ID)
	}
	for range room {
		s.post(wr)
	}
	require.NoError(t, s.qp.Modify(verbs.QPAttr{State: verbs.QPStateRTS}, verbs.QPAttrState))
	full() // the errors that came late have not made it a QP in SQE
	for range room {
		s.sent(wr.ID, verbs.WCSuccess)
	}

	quiet := wr
	quiet.ID, quiet.Flags = 77, wr.Flags&^verbs.SendSignaled
	for range 5 { // not one of them is seen, nor is one missing that is asked for
		for range room - 1 {
			s.post(quiet)
		}
		s.post(wr)
		s.sent(wr.ID, verbs.WCSuccess)
	}
	s.silent(s.send)
}

// dropped holds that a message is lost which finds no receive: attempt sends one, waits,
// posts a receive, sends another, and reports whether that took the receive. To
// who sends, a message is done when it is on its way: a device that is busy looks at it
// later, and a receive that is posted soon is in time for it.
func dropped(t *testing.T, attempt func(wait time.Duration) bool) {
	t.Helper()
	for wait := time.Millisecond; !attempt(wait); wait *= 10 {
		require.Less(t, wait, 10*time.Second, "the message has waited for a receive")
	}
}
