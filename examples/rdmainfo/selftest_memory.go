package main

import (
	"encoding/binary"
	"fmt"

	"github.com/seed-b9b531af/ramjet/verbs"
)

const remoteOffset = 2 << 20 // of what is written and read

func (t *deviceTest) writes(l *loop) error { return l.writes(transferSizes) }

func (l *loop) writes(sizes []int) error {
	for i, n := range sizes {
		fill(l.a.mr.Bytes()[:n], i+10)
		if err := l.do(verbs.SendWR{Opcode: verbs.OpWrite, RemoteAddr: remoteOffset, SGL: []verbs.SGE{l.a.mr.SGE(0, n)}}); err != nil {
			return err
		}
		if err := l.placed(); err != nil {
			return err
		}
		if err := sameBytes(l.a.mr.Bytes()[:n], l.b.mr.Bytes()[remoteOffset:][:n]); err != nil {
			return err
		}
	}
	return nil
}

func (t *deviceTest) writeImmediate(l *loop) error {
	if err := t.needs(verbs.CapWriteWithImm); err != nil {
		return err
	}
	fill(l.a.mr.Bytes()[:5000], 3)
	wr := verbs.SendWR{Opcode: verbs.OpWriteWithImm, Imm: someImm, RemoteAddr: l.b.mr.Addr() + remoteOffset, RKey: l.b.mr.RKey(), SGL: []verbs.SGE{l.a.mr.SGE(0, 5000)}}
	if err := l.message(wr, 5000, hasImm); err != nil {
		return err
	}
	return sameBytes(l.a.mr.Bytes()[:5000], l.b.mr.Bytes()[remoteOffset:][:5000])
}

func (t *deviceTest) reads(l *loop) error {
	if err := t.needs(verbs.CapRead); err != nil {
		return err
	}
	for i, n := range transferSizes {
		fill(l.b.mr.Bytes()[remoteOffset:][:n], i+20)
		if err := l.do(verbs.SendWR{Opcode: verbs.OpRead, RemoteAddr: remoteOffset, SGL: []verbs.SGE{l.a.mr.SGE(0, n)}}); err != nil {
			return err
		}
		if err := sameBytes(l.b.mr.Bytes()[remoteOffset:][:n], l.a.mr.Bytes()[:n]); err != nil {
			return err
		}
	}
	return nil
}

func (t *deviceTest) readsOfTwoPages(l *loop) error {
	if err := t.needs(verbs.CapRead); err != nil {
		return err
	}
	for n := 2; n <= shortRead; n += 6 {
		at := remoteOffset + leastPage - 1
		theirs, ours := l.b.mr.Bytes()[at:][:n], l.a.mr.Bytes()[:n]
		fill(theirs, n)
		clear(ours)
		if err := l.do(verbs.SendWR{Opcode: verbs.OpRead, RemoteAddr: uint64(at), SGL: []verbs.SGE{l.a.mr.SGE(0, n)}}); err != nil {
			return err
		}
		err := sameBytes(theirs, ours)
		if err != nil && t.answeredWronglyBySIW(at, n) {
			return errOfSIW // not which bytes came: they are from anybody's memory
		}
		if err != nil {
			return err
		}
	}
	return nil
}

const (
	leastPage = 4096
	shortRead = 32 // bytes whose answer siw copies behind a header
)

// answeredWronglyBySIW reports whether n bytes at an offset of the remote memory are what
// siw copies wrongly: a few that lie in two pages.
func (t *deviceTest) answeredWronglyBySIW(at, n int) bool {
	return t.device.Driver == "siw" && n <= shortRead && at%leastPage+n > leastPage
}

func (t *deviceTest) compareSwap(l *loop) error {
	if err := t.needs(verbs.CapAtomics); err != nil {
		return err
	}
	const one, two = 0x0102030405060708, 0x1112131415161718
	binary.NativeEndian.PutUint64(l.b.mr.Bytes()[64:], one)
	if err := l.atomic(verbs.SendWR{Opcode: verbs.OpCompareSwap, CompareAdd: two, Swap: 5}, one, one); err != nil {
		return err
	}
	return l.atomic(verbs.SendWR{Opcode: verbs.OpCompareSwap, CompareAdd: one, Swap: two}, one, two)
}

func (t *deviceTest) fetchAdd(l *loop) error {
	if err := t.needs(verbs.CapAtomics); err != nil {
		return err
	}
	binary.NativeEndian.PutUint64(l.b.mr.Bytes()[64:], 0xffff_ffff)
	return l.atomic(verbs.SendWR{Opcode: verbs.OpFetchAdd, CompareAdd: 3}, 0xffff_ffff, 0x1_0000_0002)
}

// atomic runs a request and compares what it fetched and left.
func (l *loop) atomic(wr verbs.SendWR, before, after uint64) error {
	theirs, ours := l.b.mr.Bytes()[64:72], l.a.mr.Bytes()[:8]
	wr.RemoteAddr, wr.SGL = 64, []verbs.SGE{l.a.mr.SGE(0, 8)}
	if err := l.do(wr); err != nil {
		return err
	}
	if fetched := binary.NativeEndian.Uint64(ours); fetched != before {
		return fmt.Errorf("%v fetched %#x, and %#x was there", wr.Opcode, fetched, before)
	}
	if left := binary.NativeEndian.Uint64(theirs); left != after {
		return fmt.Errorf("%v left %#x instead of %#x", wr.Opcode, left, after)
	}
	return nil
}

// do runs a request of a on b's memory to its end.
func (l *loop) do(wr verbs.SendWR) error {
	wr.RemoteAddr, wr.RKey = wr.RemoteAddr+l.b.mr.Addr(), l.b.mr.RKey()
	id, err := l.a.post(wr)
	if err == nil {
		_, err = l.a.succeed(id)
	}
	if err != nil {
		return fmt.Errorf("%v: %w", wr.Opcode, err)
	}
	return nil
}

// placed returns when what a has written is in b's memory: of iWARP and UC only a
// message behind it says so.
func (l *loop) placed() error {
	if l.ctx.Attr().Transport != verbs.TransportIWARP && l.kind.service != verbs.QPTypeUC {
		return nil
	}
	return l.message(verbs.SendWR{Opcode: verbs.OpSend}, 0, nil)
}
