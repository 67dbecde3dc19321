package handshake

import "github.com/seed-b9b531af/ramjet/rcm"

// A user of rdma_cm can reject for one reason only, 28, "consumer defined".
// What a listener of ours refuses for a reason of its own it says in the
// private data of the reject, as the REJ message of the software HCA's
// protocol; docs/protocol.md describes it. Peers of other make see reason 28.

// Refusal is the private data of a refusal.
func Refusal(reason uint16) []byte {
	return (&Message{Kind: KindReject, Reason: reason}).AppendTo(nil)
}

// RefusalReason returns the reason that the private data of a reject holds, with
// or without padding, or ReasonConsumer.
func RefusalReason(private []byte) int {
	if len(private) >= rejectSize {
		m, err := Parse(private[:rejectSize])
		if err == nil && m.Kind == KindReject {
			return int(m.Reason)
		}
	}
	return rcm.ReasonConsumer
}
