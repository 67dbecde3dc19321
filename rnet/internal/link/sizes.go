package link

import (
	"fmt"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// sizes are what a link has of its device.
type sizes struct {
	slots  uint32 // receives posted for data
	sqLen  int    // WRs that the SQ has for frames
	piece  int    // most payload of a frame
	inline int    // payload and header up to this are inline
	onWire bool   // what is posted is on its way when PostSend returns, not there
	probes bool   // probes can be sent

	emulation *emulation // of immediates; nil on a device that has them
}

// The most payload of one frame. Pieces of maxPayload overlap the two copies of
// the software HCA; to a device on a network fewer requests count for more.
const (
	maxPayload  = 16 << 10
	wirePayload = 64 << 10
)

const (
	sendQueueLen = 4096 // WRs, on a device whose queues are ordinary memory
	wireQueueLen = 1024 // WRs, on one that has its own
	minQueueLen  = 64
	wireInline   = 220 // bytes inline, on the latter: each place of the queue has room for so many
)

// fit makes the sizes of a link those that its device can have.
func (s *sizes) fit(dev *verbs.DeviceAttr) error {
	if !dev.Caps.Has(verbs.CapWriteWithImm) {
		s.emulation = &emulation{}
	}
	s.sqLen, s.piece, s.inline = sendQueueLen, maxPayload, maxPayload+HeaderLen
	if !dev.Caps.Has(verbs.CapInlineIsTransfer) {
		s.sqLen, s.piece, s.inline, s.onWire = wireQueueLen, wirePayload, wireInline, true
	}
	s.inline = min(s.inline, dev.MaxInline)
	s.probes = s.onWire && dev.Caps.Has(verbs.CapRead) && dev.MaxQPInitRdAtomic > 0 && dev.MaxQPRdAtomic > 0
	spare := s.spareSends()
	s.sqLen = min(s.sqLen, dev.MaxQPWR-spare, dev.MaxCQE/2-spare)
	s.slots = uint32(max(0, min(int(s.slots), dev.MaxQPWR-controlSlots, dev.MaxCQE/2-controlSlots)))
	switch {
	case s.sqLen < minQueueLen || s.slots < MinSlots:
		return fmt.Errorf("%w: %d work requests in a queue and %d completions are too few", verbs.ErrUnsupported, dev.MaxQPWR, dev.MaxCQE)
	case dev.MaxSGE < 2:
		return fmt.Errorf("%w: %d SGEs in a work request are too few", verbs.ErrUnsupported, dev.MaxSGE)
	case s.emulation != nil && s.inline < immediateSendLen:
		return fmt.Errorf("%w: neither immediates nor %d inline bytes", verbs.ErrUnsupported, immediateSendLen)
	}
	return nil
}

// requestsPerMessage is how many WRs a message takes at most.
func (s *sizes) requestsPerMessage() int {
	if s.emulation != nil {
		return 2
	}
	return 1
}

// bounce reports whether a frame may have to go by way of the bounce buffer.
func (s *sizes) bounce() bool { return s.inline < s.piece+HeaderLen }

// queues returns the lengths of the receive and the send queue.
func (s *sizes) queues() (receives, sends int) {
	return int(s.slots) + controlSlots, s.sqLen + s.spareSends()
}

// spareSends is how many WRs the send queue has beyond those for data: credit
// messages and a probe. A credit message is a single WR on any device; what is
// left on iWARP is more than package rcm/kernelcm posts there (siw_linux.go).
func (s *sizes) spareSends() int { return controlSlots*s.requestsPerMessage() + 1 }
