package handshake

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/verbs"
)

// A Membership is a QP in a multicast group. It has no goroutine.
type Membership struct {
	qp       *verbs.QP
	group    netip.Addr
	to       rcm.Destination
	receives bool
	release  func()

	once   sync.Once
	ended  context.Context // done when the membership has ended
	cancel context.CancelCauseFunc
}

// Attach makes qp a member of a group, unless it only sends. release frees what the
// membership holds beside the QP.
func Attach(qp *verbs.QP, group netip.Addr, to rcm.Destination, p rcm.JoinParam, release func()) (*Membership, error) {
	m := &Membership{qp: qp, group: group, to: to, receives: !p.SendOnly, release: release}
	if m.receives {
		if err := qp.AttachMulticast(to.AV.DGID, to.AV.DLID); err != nil {
			return nil, err
		}
	}
	m.ended, m.cancel = context.WithCancelCause(context.Background())
	return m, nil
}

func (m *Membership) Destination() rcm.Destination { return m.to }
func (m *Membership) Ended() <-chan struct{}       { return m.ended.Done() }
func (m *Membership) Err() error                   { return context.Cause(m.ended) }

// End takes the QP and the port out of the group, unless that was done.
func (m *Membership) End(err error) {
	m.once.Do(func() {
		if m.receives {
			// It may fail because the caller closed the QP or the device is gone:
			// then the QP has left.
			_ = m.qp.DetachMulticast(m.to.AV.DGID, m.to.AV.DLID)
		}
		m.release()
		m.cancel(fmt.Errorf("rcm: membership in %v: %w", m.group, err))
	})
}

func (m *Membership) Leave() error {
	m.End(net.ErrClosed)
	return nil
}
