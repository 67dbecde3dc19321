package handshake

import (
	"fmt"
	"sync"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// Datagrams is how a UD QP is to begin.
type Datagrams struct {
	PKeyIndex uint16
	Port      uint8
	QKey      uint32
	Prepare   func(*verbs.QP) error
}

// Start brings a UD QP from RESET to RTS, which started says, or to ERR. One that is at RTS
// with the Q_Key is left as it is, and so is one that another Start brings there: the two may
// overlap, for one QP serves any number of questions.
func (d *Datagrams) Start(qp *verbs.QP) (started bool, err error) {
	if t := qp.Attr().Type; t != verbs.QPTypeUD {
		return false, fmt.Errorf("%w: QP of type %v, datagrams need a UD QP", verbs.ErrInvalid, t)
	}
	defer starts.begin(qp)()
	a, err := qp.Query()
	switch {
	case err != nil:
		return false, err
	case a.State == verbs.QPStateReset:
		if err := d.start(qp); err != nil {
			return false, Failed(qp, err)
		}
		return true, nil
	case a.State != verbs.QPStateRTS:
		return false, fmt.Errorf("%w: QP in state %v, it has to be in RESET or RTS", verbs.ErrInvalid, a.State)
	case a.QKey != d.QKey:
		return false, fmt.Errorf("%w: QP with Q_Key %#x, it has to be %#x", verbs.ErrInvalid, a.QKey, d.QKey)
	}
	return false, nil
}

func (d *Datagrams) start(qp *verbs.QP) error {
	attr := verbs.QPAttr{State: verbs.QPStateInit, PKeyIndex: d.PKeyIndex, Port: d.Port, QKey: d.QKey}
	if err := qp.Modify(attr, verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrQKey); err != nil {
		return err
	}
	if err := Prepare(d.Prepare, qp); err != nil {
		return err
	}
	if err := qp.Modify(verbs.QPAttr{State: verbs.QPStateRTR}, verbs.QPAttrState); err != nil {
		return err
	}
	return qp.Modify(verbs.QPAttr{State: verbs.QPStateRTS}, verbs.QPAttrState|verbs.QPAttrSQPSN)
}

// starts are the QPs that a Start is about.
var starts = starting{qps: make(map[*verbs.QP]chan struct{})}

type starting struct {
	mu  sync.Mutex
	qps map[*verbs.QP]chan struct{} // closed when it is over; guarded by mu
}

// begin waits until no other Start is about qp. end must be called.
func (s *starting) begin(qp *verbs.QP) (end func()) {
	s.mu.Lock()
	for other := s.qps[qp]; other != nil; other = s.qps[qp] {
		s.mu.Unlock()
		<-other // ends with that Start, which calls Prepare
		s.mu.Lock()
	}
	defer s.mu.Unlock()
	over := make(chan struct{})
	s.qps[qp] = over
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.qps, qp)
		close(over)
	}
}
