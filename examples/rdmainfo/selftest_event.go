package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// readEvents hands asynchronous events to those who wait for them. What nobody
// waits for is dropped.
func (t *deviceTest) readEvents() {
	for {
		e, err := t.ctx.NextEvent() // ends with the context
		if err != nil {
			close(t.events)
			return
		}
		select {
		case t.events <- e:
		default:
		}
	}
}

// raised waits for an asynchronous event, and passes over others.
func (t *deviceTest) raised(want verbs.AsyncEvent) error {
	timeout := time.After(loopTimeout)
	for {
		select { // ends with the event, the context, or the time
		case e, ok := <-t.events:
			switch {
			case !ok:
				return errors.New("the device has no events any more")
			case e == want:
				return nil
			}
		case <-timeout:
			return fmt.Errorf("no event %v within %v", want.Type, loopTimeout)
		}
	}
}

// limitReached lets an SRQ run low.
func (t *deviceTest) limitReached(l *loop) error {
	const posted, limit = 4, 3
	var ids []uint64
	for range posted {
		id, err := l.b.receive(0, 8)
		if err != nil {
			return err
		}
		ids = append(ids, id)
	}
	if err := l.b.srq.Modify(verbs.SRQAttr{Limit: limit}, verbs.SRQAttrLimit); err != nil {
		return err
	}
	for _, id := range ids[:posted-limit+1] {
		sent, err := l.a.post(verbs.SendWR{Opcode: verbs.OpSend})
		if err != nil {
			return err
		}
		if _, err := l.a.succeed(sent); err != nil {
			return err
		}
		if _, err := l.b.succeed(id); err != nil {
			return err
		}
	}
	return t.raised(verbs.AsyncEvent{Type: verbs.EventSRQLimitReached, SRQ: l.b.srq})
}

// lastRequestReached has a QP with an SRQ fail.
func (t *deviceTest) lastRequestReached(l *loop) error {
	if t.device.Driver == "rxe" || t.device.Driver == "siw" {
		return leftOut("the kernel's " + t.device.Driver + " does not raise it")
	}
	if err := l.b.qp.Fail(); err != nil {
		return err
	}
	return t.raised(verbs.AsyncEvent{Type: verbs.EventLastWQEReached, QPN: l.b.qp.Num()})
}

// solicitedEvents has b wait for a message that asks for its event.
func (t *deviceTest) solicitedEvents(l *loop) error {
	for _, flags := range []verbs.SendFlags{0, verbs.SendSolicited} {
		recv, err := l.b.receive(0, 8)
		if err != nil {
			return err
		}
		if err := l.b.cq.Arm(true); err != nil {
			return err
		}
		sent, err := l.a.post(verbs.SendWR{Opcode: verbs.OpSend, Flags: flags})
		if err != nil {
			return err
		}
		if flags != 0 {
			if err := l.b.awaitEvent(recv, true); err != nil {
				return err
			}
		}
		if _, err := l.b.succeed(recv); err != nil {
			return err
		}
		if _, err := l.a.succeed(sent); err != nil {
			return err
		}
	}
	return nil
}
