package main

import (
	"errors"
	"fmt"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// unreliableSizes are of messages of UC, which nobody sends again: few packets, of which none is lost on the way from a
// port to itself.
var unreliableSizes = []int{0, 1, 100, 4096, 65_537}

func (t *deviceTest) unreliableSends(l *loop) error {
	if err := l.sends(unreliableSizes); err != nil {
		return err
	}
	if err := t.immediate(l); !errors.Is(err, errLeftOut) {
		return err
	}
	return nil
}

func (t *deviceTest) unreliableWrites(l *loop) error {
	if err := l.writes(unreliableSizes[1:]); err != nil {
		return err
	}
	if err := t.writeImmediate(l); !errors.Is(err, errLeftOut) {
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
	data := l.a.mr.Bytes()[remoteOffset:][:n]
	fill(data, seed)
	wr := verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{l.a.mr.SGE(remoteOffset, n)},
		Datagram: &verbs.Datagram{AH: to, QPN: l.b.qp.Num(), QKey: loopQKey}}
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
