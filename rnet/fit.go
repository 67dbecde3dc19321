package rnet

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// fit makes the sizes of a session those that its device can have.
func (s *session) fit(dev *verbs.DeviceAttr) error {
	if !dev.Caps.Has(verbs.CapWriteWithImm) {
		s.notices = &notices{}
	}
	s.sqLen, s.piece, s.inline = sendQueueLen, maxPayload, maxPayload+frameHeaderLen
	if !dev.Caps.Has(verbs.CapInlineIsTransfer) {
		s.sqLen, s.piece, s.inline, s.onWire = wireQueueLen, wirePayload, wireInline, true
	}
	s.inline = min(s.inline, dev.MaxInline)
	s.probes = s.onWire && dev.Caps.Has(verbs.CapRead) && dev.MaxQPInitRdAtomic > 0 && dev.MaxQPRdAtomic > 0
	spare := s.spareSends()
	s.sqLen = min(s.sqLen, dev.MaxQPWR-spare, dev.MaxCQE/2-spare)
	s.cfg.slots = uint32(max(0, min(int(s.cfg.slots), dev.MaxQPWR-controlSlots, dev.MaxCQE/2-controlSlots)))
	switch {
	case s.sqLen < minQueueLen || s.cfg.slots < minSlots:
		return fmt.Errorf("%w: %d work requests in a queue and %d completions are too few", verbs.ErrUnsupported, dev.MaxQPWR, dev.MaxCQE)
	case dev.MaxSGE < 2:
		return fmt.Errorf("%w: %d SGEs in a work request are too few", verbs.ErrUnsupported, dev.MaxSGE)
	case s.notices != nil && s.inline < noticeLen:
		return fmt.Errorf("%w: neither immediates nor %d inline bytes", verbs.ErrUnsupported, noticeLen)
	}
	return nil
}

// wrsPerMessage is how many WRs a message takes at most.
func (s *session) wrsPerMessage() int {
	if s.notices != nil {
		return 2
	}
	return 1
}

// queues returns the lengths of the receive and the send queue.
func (s *session) queues() (receives, sends int) {
	return int(s.cfg.slots) + controlSlots, s.sqLen + s.spareSends()
}

// spareSends is how many WRs the send queue has beyond those for data: credit
// messages and a probe. A credit message is a single WR on any device; what is
// left on iWARP is more than package rcm posts there (kernel_siw_linux.go).
func (s *session) spareSends() int { return controlSlots*s.wrsPerMessage() + 1 }

// allocRing makes the receive ring. Where memory is short a smaller ring is
// better than none, and so is one that leaves the stage its least.
func (s *session) allocRing() error {
	access := verbs.AccessLocalWrite | verbs.AccessRemoteWrite
	if s.probes && s.notices != nil {
		access |= verbs.AccessRemoteRead // see probing
	}
	for {
		mr, err := allocUpTo(s.pd, s.cfg.ringSize, access, verbs.MROptions{Sparse: true})
		if err != nil {
			return err
		}
		s.cfg.ringSize = uint32(len(mr.Bytes()))
		if err = s.leastStage(); err == nil {
			s.rxMR = mr
			return nil
		}
		mr.Close()
		if !isShort(err) || s.cfg.ringSize/2 < minRingSize {
			return err
		}
		s.cfg.ringSize /= 2
	}
}

// leastStage makes the least stage, if there is to be one. It grows when the
// peer's ring is known.
func (s *session) leastStage() (err error) {
	if s.inline >= s.piece+frameHeaderLen {
		return nil
	}
	s.stage.mr, err = s.pd.AllocMR(minRingSize, verbs.AccessLocalWrite, verbs.MROptions{})
	return err
}

// allocUpTo registers size bytes, a power of two, or where memory is short the
// half of it, and so on down to minRingSize.
func allocUpTo(pd *verbs.PD, size uint32, access verbs.Access, opt verbs.MROptions) (*verbs.MR, error) {
	for {
		mr, err := pd.AllocMR(int(size), access, opt)
		if err == nil || !isShort(err) || size/2 < minRingSize {
			return mr, err
		}
		size /= 2
	}
}

// isShort reports whether an error may be due to the size of what was asked.
func isShort(err error) bool {
	return errors.Is(err, syscall.ENOMEM) || errors.Is(err, verbs.ErrPinLimit)
}
