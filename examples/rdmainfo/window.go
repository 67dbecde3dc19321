package main

import (
	"errors"
	"fmt"

	"github.com/seed-b9b531af/ramjet/verbs"
)

func (t *deviceTest) windowTakenByItsOwner(l *loop) error {
	return t.window(l, func(key uint32) error {
		id, err := l.b.post(verbs.SendWR{Opcode: verbs.OpLocalInv, InvalidateRKey: key})
		if err == nil {
			_, err = l.b.succeed(id)
		}
		return err
	})
}

func (t *deviceTest) windowTakenByItsPeer(l *loop) error {
	if err := t.needs(verbs.CapSendWithInv); err != nil {
		return err
	}
	return t.window(l, func(key uint32) error {
		return l.message(verbs.SendWR{Opcode: verbs.OpSendWithInv, InvalidateRKey: key}, 0, func(wc verbs.WC) error {
			if wc.Flags&verbs.WCWithInv == 0 || wc.Imm != key {
				return fmt.Errorf("the receive says that key %#x was taken away, and it was %#x", wc.Imm, key)
			}
			return nil
		})
	})
}

// window binds a memory window twice, with a key of its own each time. The peer writes by it, it is
// taken away, and then the peer cannot write any more.
func (t *deviceTest) window(l *loop, take func(key uint32) error) (err error) {
	if err := t.needs(verbs.CapMemWindow); err != nil {
		return err
	}
	const length, offset, size = 8192, 1000, 500
	mr, err := l.b.pd.AllocMR(length, verbs.AccessLocalWrite|verbs.AccessMWBind, verbs.MROptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mr.Close()) }()
	mw, err := l.b.pd.AllocMW(verbs.MWType2)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mw.Close()) }()
	key, at := mw.RKey(), mr.Addr()+offset
	write := verbs.SendWR{Opcode: verbs.OpWrite, RemoteAddr: at, SGL: []verbs.SGE{l.a.mr.SGE(0, size)}}
	for seed := range 2 {
		key = key&^0xff | (key+1)&0xff
		fill(l.a.mr.Bytes()[:size], seed)
		bind := verbs.Bind{MW: mw, RKey: key, MR: mr, Addr: at, Length: size, Access: verbs.AccessRemoteWrite}
		id, err := l.b.post(verbs.SendWR{Opcode: verbs.OpBindMW, Bind: &bind})
		if err != nil {
			return err
		}
		if _, err := l.b.succeed(id); err != nil {
			return fmt.Errorf("bind: %w", err)
		}
		write.RKey = key
		if id, err = l.a.post(write); err != nil {
			return err
		}
		if _, err := l.a.succeed(id); err != nil {
			return fmt.Errorf("WRITE by the window: %w", err)
		}
		if err := sameBytes(l.a.mr.Bytes()[:size], mr.Bytes()[offset:][:size]); err != nil {
			return err
		}
		if err := take(key); err != nil {
			return err
		}
	}
	id, err := l.a.post(write)
	if err != nil {
		return err
	}
	wc, err := l.a.completion(id)
	if err == nil && wc.Status != verbs.WCRemAccessErr {
		err = fmt.Errorf("a WRITE by a window that was taken away ends with %v", wc.Status)
	}
	return err
}
