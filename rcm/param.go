package rcm

import "github.com/seed-b9b531af/ramjet/verbs"

// ConnParam says how a QP is to be connected. The zero value is ready to
// use for SEND and RDMA WRITE; each side gives its own.
type ConnParam struct {
	// PrivateData goes to the peer with the request (MaxRequestData) or the
	// reply (MaxReplyData).
	PrivateData []byte
	// RetryCount is how often an unanswered request is repeated, 1 to 7; 0
	// means 7.
	RetryCount uint8
	// RNRRetry is how often a request is repeated for which the peer had no
	// receive posted, 1 to 6; 0 and 7 mean without end.
	RNRRetry uint8
	// MinRNRTimer is the code (verbs.RNRTimer) of the least time that the
	// peer waits before it repeats such a request to us. 0 means 6, 80 us:
	// the code 0 of the specification is its longest, 655 ms, and of no use.
	MinRNRTimer uint8
	// Timeout is the code (verbs.AckTimeout) of the time after which a
	// request counts as unanswered, 1 to 31; 0 means 14,
	// 67 ms, and on software devices 18, a second.
	Timeout uint8
	// ResponderResources is how many READs and atomics of the peer may be
	// under way here, InitiatorDepth how many of ours there. Both are cut
	// down to what the devices and the other side allow. 0 means none.
	ResponderResources uint8
	InitiatorDepth     uint8
	// Access is what the QP lets the peer do. 0 means RDMA WRITE, and READ
	// and the atomics that the device has if ResponderResources is not 0.
	Access verbs.Access
	// Prepare, unless nil, is called once with the QP in INIT, before the
	// peer can send: the place to post receives, so that the first message
	// finds one.
	Prepare func(*verbs.QP) error
}
