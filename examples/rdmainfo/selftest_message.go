package main

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/seed-b9b531af/ramjet/verbs"
)

func (t *deviceTest) sends(l *loop) error { return l.sends(append([]int{0}, transferSizes...)) }

func (l *loop) sends(sizes []int) error {
	for i, n := range sizes {
		fill(l.a.mr.Bytes()[:n], i)
		clear(l.b.mr.Bytes()[:n+1])
		if err := l.message(verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{l.a.mr.SGE(0, n)}}, n, nil); err != nil {
			return err
		}
		if err := sameBytes(l.a.mr.Bytes()[:n], l.b.mr.Bytes()[:n]); err != nil {
			return err
		}
		if l.b.mr.Bytes()[n] != 0 {
			return fmt.Errorf("more than %d bytes arrived", n)
		}
	}
	return nil
}

func (t *deviceTest) inline(l *loop) error {
	most := l.a.qp.Attr().Cap.MaxInline
	if most == 0 {
		return errNone
	}
	for _, n := range []int{1, 3, most} {
		data := make([]byte, n)
		fill(data, n)
		want := bytes.Clone(data)
		wr := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendInline, Inline: [][]byte{data[:n/2], data[n/2:]}}
		if err := l.message(wr, n, nil); err != nil {
			return err
		}
		if err := sameBytes(want, l.b.mr.Bytes()[:n]); err != nil {
			return err
		}
	}
	return nil
}

const someImm = 0x1a2b3c4d

func (t *deviceTest) immediate(l *loop) error {
	if err := t.needs(verbs.CapSendWithImm); err != nil {
		return err
	}
	return l.message(verbs.SendWR{Opcode: verbs.OpSendWithImm, Imm: someImm, SGL: []verbs.SGE{l.a.mr.SGE(0, 10)}}, 10, hasImm)
}

func (t *deviceTest) gathered(l *loop) error {
	if l.a.qp.Attr().Cap.MaxSendSGE < 3 {
		return errNone
	}
	memory := l.a.mr.Bytes()
	fill(memory[:30_000], 7)
	wr := verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{l.a.mr.SGE(20_000, 777), l.a.mr.SGE(1, 4095), l.a.mr.SGE(10_000, 2)}}
	if err := l.message(wr, 777+4095+2, nil); err != nil {
		return err
	}
	return sameBytes(slices.Concat(memory[20_000:20_777], memory[1:4096], memory[10_000:10_002]), l.b.mr.Bytes()[:4874])
}

// message sends one from a to b, whose completion says so many bytes, and lets
// look see the completion.
func (l *loop) message(wr verbs.SendWR, n int, look func(verbs.WC) error) error {
	recv, err := l.b.receive(0, loopMemory)
	if err != nil {
		return err
	}
	sent, err := l.a.post(wr)
	if err != nil {
		return err
	}
	if _, err := l.a.succeed(sent); err != nil {
		return fmt.Errorf("%v of %d bytes: %w", wr.Opcode, n, err)
	}
	wc, err := l.b.succeed(recv)
	if err != nil {
		return fmt.Errorf("receive of %d bytes: %w", n, err)
	}
	if int(wc.ByteLen) != n {
		return fmt.Errorf("the receive says %d bytes of %d", wc.ByteLen, n)
	}
	if look != nil {
		return look(wc)
	}
	return nil
}

func hasImm(wc verbs.WC) error {
	if wc.Flags&verbs.WCWithImm == 0 || wc.Imm != someImm {
		return fmt.Errorf("the immediate is %#x, flags %#x, and was %#x", wc.Imm, wc.Flags, someImm)
	}
	return nil
}

func sameBytes(want, got []byte) error {
	if bytes.Equal(want, got) {
		return nil
	}
	for i := range want {
		if want[i] != got[i] {
			return fmt.Errorf("byte %d of %d is %#x and was sent as %#x", i, len(want), got[i], want[i])
		}
	}
	return nil
}
