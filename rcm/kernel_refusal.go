package rcm

// A user of rdma_cm can reject for one reason only, 28, "consumer defined".
// What a listener of ours refuses for a reason of its own it says in the
// private data of the reject, as the REJ message of the software HCA's
// protocol; docs/protocol.md describes it. Peers of other make see reason 28.

// refusalData is the private data of a refusal.
func refusalData(reason uint16) []byte {
	return (&message{kind: kindReject, reason: reason}).appendTo(nil)
}

// refusal returns the reason that the private data of a reject holds, with
// or without padding, or ReasonConsumer.
func refusal(private []byte) int {
	if len(private) >= rejectSize {
		m, err := parseMessage(private[:rejectSize])
		if err == nil && m.kind == kindReject {
			return int(m.reason)
		}
	}
	return ReasonConsumer
}
