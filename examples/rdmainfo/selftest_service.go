package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/seed-b9b531af/ramjet/verbs"
)

const multicastQPN = 1<<24 - 1 // which requests to a group name

// unreliableSizes are of messages of UC, which nobody sends again: few packets, of which none is
// lost on the way from a port to itself.
var unreliableSizes = []int{0, 1, 100, 4096, 65_537}

func (t *deviceTest) unreliableSends(l *loop) error {
	if err := l.sends(unreliableSizes); err != nil {
		return err
	}
	if err := t.immediate(l); !errors.Is(err, errNone) {
		return err
	}
	return nil
}

func (t *deviceTest) unreliableWrites(l *loop) error {
	if err := l.writes(unreliableSizes[1:]); err != nil {
		return err
	}
	if err := t.writeImmediate(l); !errors.Is(err, errNone) {
		return err
	}
	return nil
}

// datagrams sends some from a to b, and answers each at the address from which it came.
func (t *deviceTest) datagrams(l *loop) (err error) {
	attr, err := t.ctx.QueryPort(t.port.Port)
	if err != nil {
		return err
	}
	there, err := l.a.pd.CreateAH(vector(t.port.Port, &attr, t.gid))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, there.Close()) }()
	for i, n := range []int{0, 1, 100, attr.ActiveMTU.Bytes()} {
		wc, err := l.datagram(there, i, n)
		if err != nil {
			return err
		}
		if wc.SrcQPN != l.a.qp.Num() {
			return fmt.Errorf("the sender is QP %#x, and was QP %#x", wc.SrcQPN, l.a.qp.Num())
		}
		back, err := l.b.pd.CreateReplyAH(&wc, l.b.mr.Bytes()[:verbs.GRHSize], t.port.Port)
		if err != nil {
			return fmt.Errorf("the address to answer to: %w", err)
		}
		if _, err = l.reversed().datagram(back, i+100, n); err != nil {
			err = fmt.Errorf("answer: %w", err)
		}
		if err = errors.Join(err, back.Close()); err != nil {
			return err
		}
	}
	return nil
}

// datagram sends one of n bytes, and returns its completion at the other end.
func (l *loop) datagram(to *verbs.AH, seed, n int) (received verbs.WC, err error) {
	return l.datagramTo(&verbs.Datagram{AH: to, QPN: l.b.qp.Num(), QKey: loopQKey}, seed, n)
}

func (l *loop) datagramTo(to *verbs.Datagram, seed, n int) (received verbs.WC, err error) {
	data := l.a.mr.Bytes()[remoteOffset:][:n]
	fill(data, seed)
	wr := verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{l.a.mr.SGE(remoteOffset, n)}, Datagram: to}
	err = l.message(wr, verbs.GRHSize+n, func(wc verbs.WC) error {
		received = wc
		return nil
	})
	if err == nil {
		err = sameBytes(data, l.b.mr.Bytes()[verbs.GRHSize:][:n])
	}
	return received, err
}

// reversed is the loop with its ends exchanged.
func (l *loop) reversed() *loop { return &loop{ctx: l.ctx, kind: l.kind, a: l.b, b: l.a} }

// multicast sends datagrams from a to a group in which b is, and when it has left.
func (t *deviceTest) multicast(l *loop) (err error) {
	attr, err := t.ctx.QueryPort(t.port.Port)
	if err != nil {
		return err
	}
	group, lid := verbs.GID{0: 0xff, 1: 0x0e, 15: 0x77}, uint16(0)
	alone := vector(t.port.Port, &attr, t.gid)
	if alone.DLID != 0 {
		// That the subnet manager knows no such group is no matter: what leads to a QP
		// of the same adapter need not leave it (InfiniBand Architecture
		// Specification, 10.5.2).
		lid = 0xc077
	}
	if t.gid.Type == verbs.GIDTypeRoCEv2 {
		if netip.AddrFrom16(t.gid.GID).Is4In6() {
			group = netip.MustParseAddr("::ffff:239.1.2.77").As16()
		}
		netdev, err := net.InterfaceByName(t.gid.Netdev)
		if err != nil {
			return err
		}
		// A socket joins the group for the interface.
		conn, err := net.ListenMulticastUDP("udp", netdev, &net.UDPAddr{IP: group[:]})
		if err != nil {
			return err
		}
		defer conn.Close()
	}
	if err := l.b.qp.AttachMulticast(group, lid); err != nil {
		return err
	}
	there := alone
	there.DGID, there.DLID, there.SGIDIndex, there.IsGlobal = group, lid, uint8(t.gid.Index), true
	all, err := l.a.pd.CreateAH(there)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, all.Close()) }()
	one, err := l.a.pd.CreateAH(alone)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, one.Close()) }()
	for i, n := range []int{0, 100, attr.ActiveMTU.Bytes()} {
		if _, err := l.datagramTo(&verbs.Datagram{AH: all, QPN: multicastQPN, QKey: loopQKey}, i, n); err != nil {
			return err
		}
	}
	if err := l.b.qp.DetachMulticast(group, lid); err != nil {
		return err
	}
	// The first of two comes to nobody, or it would have the only receive.
	const nobodys, ours = 10, 200
	recv, err := l.b.receive(0, loopMemory)
	if err != nil {
		return err
	}
	for _, wr := range []verbs.SendWR{
		{SGL: []verbs.SGE{l.a.mr.SGE(0, nobodys)}, Datagram: &verbs.Datagram{AH: all, QPN: multicastQPN, QKey: loopQKey}},
		{SGL: []verbs.SGE{l.a.mr.SGE(0, ours)}, Datagram: &verbs.Datagram{AH: one, QPN: l.b.qp.Num(), QKey: loopQKey}},
	} {
		wr.Opcode = verbs.OpSend
		sent, err := l.a.post(wr)
		if err != nil {
			return err
		}
		if _, err := l.a.succeed(sent); err != nil {
			return err
		}
	}
	wc, err := l.b.succeed(recv)
	if err == nil && wc.ByteLen != verbs.GRHSize+ours {
		err = fmt.Errorf("after b has left the group it receives %d bytes of %d", wc.ByteLen, verbs.GRHSize+ours)
	}
	return err
}
