//go:build amd64 || arm64

package fabric

// A Domain is what QPs of XRC that receive have in common: the SRQs that requests
// name, by their numbers.
type Domain struct {
	SRQs map[uint32]DomainQueue
}

// A DomainQueue is an SRQ of a domain. Its receive requests complete where it says, whichever
// QP a message came by.
type DomainQueue interface {
	ReceiveQueue
	// Received writes the completion of the receive request with that index, of a message to
	// the QP of that number.
	Received(qpn uint32, index uint16, r Receipt)
}

// receiver is where the messages to a QP go, for one request.
type receiver struct {
	ReceiveQueue
	received func(index uint16, r Receipt)
}

// receiverOf returns what a request is for. The PD of a target is that of the SRQ (IBA annex A14).
// It is false if the domain has no SRQ of that number.
func (q *QP) receiverOf(w *Request) (r receiver, ok bool) {
	if q.Service != XRCTarget {
		return receiver{q.Queues.Receives(), q.Queues.Received}, true
	}
	s, ok := q.Domain.SRQs[w.SRQ]
	if !ok {
		return receiver{}, false
	}
	q.PD = s.PD()
	return receiver{s, func(index uint16, r Receipt) { s.Received(q.Number, index, r) }}, true
}

// reliable says whether requests are answered.
func (s Service) reliable() bool { return s == RC || s == XRCInitiator || s == XRCTarget }

// other is the service of the QP at the other end.
func (s Service) other() Service {
	switch s {
	case XRCInitiator:
		return XRCTarget
	case XRCTarget:
		return XRCInitiator
	}
	return s
}

// ignored are the bits of attr_mask that a QP has no use for (core/uverbs_cmd.c, modify_qp_mask).
var ignored = map[Service]uint32{XRCInitiator: MaskMaxDest | MaskMinRNR, XRCTarget: MaskMaxRead | MaskRetry | MaskRNRRetry}
