package main

import (
	"errors"
	"fmt"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// openDomain makes an XRC target with an SRQ, in a domain that no other process has.
func (e *end) openDomain() (err error) {
	if e.domain, err = e.pd.Context().OpenXRCDomain(nil); err != nil {
		return err
	}
	if e.srq, err = e.domain.CreateSRQ(e.pd, e.cq, verbs.SRQAttr{MaxWR: loopRequests, MaxSGE: 1}); err != nil {
		return err
	}
	e.qp, err = e.domain.CreateQP()
	return err
}

// namedSRQs sends alternately to two SRQs of the domain.
func (t *deviceTest) namedSRQs(l *loop) (err error) {
	const rounds, size = 4, 64
	first := l.b.srq
	second, err := l.b.domain.CreateSRQ(l.b.pd, l.b.cq, verbs.SRQAttr{MaxWR: rounds, MaxSGE: 1})
	if err != nil {
		return err
	}
	defer func() {
		l.a.remote, l.b.srq = first.Num(), first
		err = errors.Join(err, second.Close())
	}()
	if first.Num() == second.Num() {
		return fmt.Errorf("two SRQs have number %#x", first.Num())
	}
	for i := range rounds {
		// The receive of the SRQ that is not named is posted first, and has to stay.
		var ids [2]uint64
		for j, srq := range []*verbs.SRQ{second, first} {
			l.b.srq = srq
			if ids[j], err = l.b.receive(j*size, size); err != nil {
				return err
			}
		}
		for j, srq := range []*verbs.SRQ{first, second} {
			id, at := ids[1-j], (1-j)*size
			l.a.remote = srq.Num()
			fill(l.a.mr.Bytes()[:size], 2*i+j)
			sent, err := l.a.post(verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{l.a.mr.SGE(0, size)}})
			if err != nil {
				return err
			}
			if _, err := l.a.succeed(sent); err != nil {
				return err
			}
			wc, err := l.b.succeed(id)
			if err != nil {
				return fmt.Errorf("SRQ %#x: %w", srq.Num(), err)
			}
			if wc.QPN != l.b.qp.Num() {
				return fmt.Errorf("the completion names QP %#x, and the message came by QP %#x", wc.QPN, l.b.qp.Num())
			}
			if err := sameBytes(l.a.mr.Bytes()[:size], l.b.mr.Bytes()[at:][:size]); err != nil {
				return err
			}
		}
	}
	return nil
}
