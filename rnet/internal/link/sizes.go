package link

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// sizes are what a link has of its device.
type sizes struct {
	ringSize uint32 // of the receive ring
	slots    uint32 // receives posted for data
	sqLen    int    // WRs that the SQ has for frames
	piece    int    // most payload of a frame
	inline   int    // payload and header up to this are inline
	onWire   bool   // what is posted is on its way when PostSend returns, not there
	probes   bool   // probes can be sent

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
func (l *Link) fit(dev *verbs.DeviceAttr) error {
	if !dev.Caps.Has(verbs.CapWriteWithImm) {
		l.emulation = &emulation{}
	}
	l.sqLen, l.piece, l.inline = sendQueueLen, maxPayload, maxPayload+HeaderLen
	if !dev.Caps.Has(verbs.CapInlineIsTransfer) {
		l.sqLen, l.piece, l.inline, l.onWire = wireQueueLen, wirePayload, wireInline, true
	}
	l.inline = min(l.inline, dev.MaxInline)
	l.probes = l.onWire && dev.Caps.Has(verbs.CapRead) && dev.MaxQPInitRdAtomic > 0 && dev.MaxQPRdAtomic > 0
	spare := l.spareSends()
	l.sqLen = min(l.sqLen, dev.MaxQPWR-spare, dev.MaxCQE/2-spare)
	l.slots = uint32(max(0, min(int(l.slots), dev.MaxQPWR-controlSlots, dev.MaxCQE/2-controlSlots)))
	switch {
	case l.sqLen < minQueueLen || l.slots < MinSlots:
		return fmt.Errorf("%w: %d work requests in a queue and %d completions are too few", verbs.ErrUnsupported, dev.MaxQPWR, dev.MaxCQE)
	case dev.MaxSGE < 2:
		return fmt.Errorf("%w: %d SGEs in a work request are too few", verbs.ErrUnsupported, dev.MaxSGE)
	case l.emulation != nil && l.inline < immediateSendLen:
		return fmt.Errorf("%w: neither immediates nor %d inline bytes", verbs.ErrUnsupported, immediateSendLen)
	}
	return nil
}

// requestsPerMessage is how many WRs a message takes at most.
func (l *Link) requestsPerMessage() int {
	if l.emulation != nil {
		return 2
	}
	return 1
}

// queues returns the lengths of the receive and the send queue.
func (l *Link) queues() (receives, sends int) {
	return int(l.slots) + controlSlots, l.sqLen + l.spareSends()
}

// spareSends is how many WRs the send queue has beyond those for data: credit
// messages and a probe. A credit message is a single WR on any device; what is
// left on iWARP is more than package rcm/kernelcm posts there (siw_linux.go).
func (l *Link) spareSends() int { return controlSlots*l.requestsPerMessage() + 1 }

// allocRing makes the receive ring. Where memory is short a smaller ring is
// better than none, and so is one that leaves the bounce buffer its least.
func (l *Link) allocRing() error {
	access := verbs.AccessLocalWrite | verbs.AccessRemoteWrite
	if l.probes && l.emulation != nil {
		access |= verbs.AccessRemoteRead // see probing
	}
	for {
		mr, err := allocUpTo(l.pd, l.ringSize, access, verbs.MROptions{Sparse: true, OnePeer: true})
		if err != nil {
			return err
		}
		l.ringSize = uint32(len(mr.Bytes()))
		if err = l.leastBounce(); err == nil {
			l.ring = mr
			return nil
		}
		mr.Close()
		if !isShort(err) || l.ringSize/2 < MinRing {
			return err
		}
		l.ringSize /= 2
	}
}

// leastBounce makes the least bounce buffer, if there is to be one. It grows when the
// peer's ring is known.
func (l *Link) leastBounce() (err error) {
	if l.inline >= l.piece+HeaderLen {
		return nil
	}
	l.bounce.mr, err = l.pd.AllocMR(MinRing, verbs.AccessLocalWrite, verbs.MROptions{})
	return err
}

// allocUpTo registers size bytes, a power of two, or where memory is short the
// half of it, and so on down to MinRing.
func allocUpTo(pd *verbs.PD, size uint32, access verbs.Access, opt verbs.MROptions) (*verbs.MR, error) {
	for {
		mr, err := pd.AllocMR(int(size), access, opt)
		if err == nil || !isShort(err) || size/2 < MinRing {
			return mr, err
		}
		size /= 2
	}
}

// isShort reports whether an error may be due to the size of what was asked.
func isShort(err error) bool {
	return errors.Is(err, syscall.ENOMEM) || errors.Is(err, verbs.ErrPinLimit)
}
