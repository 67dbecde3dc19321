package rcm

import "golang.org/x/sys/unix"

// rejection is the error of a REJECTED. On iWARP its status is an errno:
// ECONNREFUSED where nobody listens, ECONNRESET where the peer refused.
func rejection(ev cmEvent) error {
	reason := int(ev.status)
	switch ev.status {
	case -int32(unix.ECONNREFUSED):
		reason = ReasonInvalidService
	case ReasonConsumer, -int32(unix.ECONNRESET):
		reason = refusal(ev.private)
	}
	if reason < 0 {
		return handshakeError(ev)
	}
	e := &RejectedError{Reason: reason}
	if reason == ReasonConsumer {
		e.PrivateData = ev.private
	}
	return e
}
