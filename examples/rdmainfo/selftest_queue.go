package main

import (
	"fmt"

	"github.com/seed-b9b531af/ramjet/verbs"
)

func (t *deviceTest) completionEvents(l *loop) error {
	for range 100 {
		recv, err := l.b.receive(0, 8)
		if err != nil {
			return err
		}
		if err := l.b.cq.Arm(false); err != nil {
			return err
		}
		sent, err := l.a.post(verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{l.a.mr.SGE(0, 8)}})
		if err != nil {
			return err
		}
		if err := l.b.awaitEvent(recv, false); err != nil {
			return err
		}
		if _, err := l.b.succeed(recv); err != nil {
			return err
		}
		if _, err := l.a.succeed(sent); err != nil {
			return err
		}
	}
	return nil
}

func (t *deviceTest) unsignaled(l *loop) error {
	fill(l.a.mr.Bytes()[:4096], 9)
	wr := verbs.SendWR{Opcode: verbs.OpWrite, RemoteAddr: l.b.mr.Addr() + remoteOffset, RKey: l.b.mr.RKey(), SGL: []verbs.SGE{l.a.mr.SGE(0, 4096)}}
	for range 3 {
		for range loopRequests - 1 {
			if _, err := l.a.qp.PostSend([]verbs.SendWR{wr}); err != nil {
				return err
			}
		}
		id, err := l.a.post(wr)
		if err != nil {
			return err
		}
		if _, err := l.a.succeed(id); err != nil {
			return err
		}
	}
	if len(l.a.done) > 0 {
		return fmt.Errorf("%d completions for which nobody has asked", len(l.a.done))
	}
	if err := l.placed(); err != nil {
		return err
	}
	return sameBytes(l.a.mr.Bytes()[:4096], l.b.mr.Bytes()[remoteOffset:][:4096])
}

func (t *deviceTest) resized(l *loop) error {
	if err := t.needs(verbs.CapResizeCQ); err != nil {
		return err
	}
	var ids []uint64
	for range 10 {
		id, err := l.a.post(verbs.SendWR{Opcode: verbs.OpWrite, RemoteAddr: l.b.mr.Addr(), RKey: l.b.mr.RKey(), SGL: []verbs.SGE{l.a.mr.SGE(0, 64)}})
		if err != nil {
			return err
		}
		ids = append(ids, id)
	}
	if err := l.a.cq.Resize(10 * loopRequests); err != nil {
		return err
	}
	for _, id := range ids {
		if _, err := l.a.succeed(id); err != nil {
			return err
		}
	}
	return nil
}

func (t *deviceTest) refused(l *loop) error {
	if t.ctx.Attr().Transport == verbs.TransportIWARP {
		return leftOut("of iWARP a request completes when TCP has taken it")
	}
	bad := verbs.SendWR{Opcode: verbs.OpWrite, RemoteAddr: l.b.mr.Addr(), RKey: l.b.mr.RKey() ^ 0x5a, SGL: []verbs.SGE{l.a.mr.SGE(0, 64)}}
	first, err := l.a.post(bad)
	if err != nil {
		return err
	}
	wc, err := l.a.completion(first)
	if err != nil {
		return err
	}
	if wc.Status != verbs.WCRemAccessErr {
		return fmt.Errorf("the status is %v", wc.Status)
	}
	second, err := l.a.receive(0, 8)
	if err != nil {
		return err
	}
	if wc, err = l.a.completion(second); err != nil {
		return err
	}
	if wc.Status != verbs.WCWRFlushErr {
		return fmt.Errorf("the status of what is flushed is %v", wc.Status)
	}
	return nil
}
