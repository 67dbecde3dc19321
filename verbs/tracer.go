package verbs

import (
	"fmt"
	"time"
)

// Tracer sees every work request that a device took and every completion as
// it is polled. Its functions run on the caller's goroutine in the data path,
// after the call to the device, so that a goroutine that polls may trace a
// completion before the one that posted traces the request. They must not
// block or keep their arguments. Nil functions are skipped.
type Tracer struct {
	PostSend   func(qpn uint32, wr *SendWR)
	PostRecv   func(qpn uint32, wr *RecvWR) // qpn is 0 for an SRQ
	Completion func(wc *WC)
	// Event says all of it in one form.
	Event func(e TraceEvent)

	text    *textTracer
	packets *packetTracer
	tasks   *taskTracer
}

// TraceKind is what a TraceEvent tells of.
type TraceKind uint8

// The kinds.
const (
	TracePostSend   TraceKind = iota // a send request was posted
	TracePostRecv                    // a receive was posted
	TraceCompletion                  // a completion was polled
)

// TraceEvent is what happened to a work request.
type TraceEvent struct {
	Kind   TraceKind
	Device string
	QPN    uint32 // 0 for the receives of an SRQ
	// as the specification names it: "WRITE_WITH_IMM"; of a receive, and of a completion that
	// has failed, "RECV" or ""
	Op string
	ID uint64
	// Bytes is the payload of the request, or what a completion says of it.
	Bytes int
	// WQEBytes is the length of a send request in the queue between the program and the device.
	// It is 0 where the request is in none, as a WRITE of the software HCA, or where the
	// device's driver does not tell.
	WQEBytes int
	Status   WCStatus  // of a completion
	Time     time.Time // after the call to the device
}

// posting is called before requests are given to the device.
func (t *Tracer) posting(qp *QP, wrs []SendWR) {
	if t.packets != nil {
		t.packets.posting(qp)
	}
	if t.tasks != nil {
		t.tasks.begin(qp, wrs)
	}
}

// postedSends is called after that, with what the device took of all.
func (t *Tracer) postedSends(qp *QP, all []SendWR, n int) {
	for i := range all[:n] {
		wr := &all[i]
		if t.PostSend != nil {
			t.PostSend(qp.num, wr)
		}
		if t.packets != nil {
			t.packets.post(qp, wr)
		}
		if t.Event == nil && t.text == nil {
			continue
		}
		e := TraceEvent{Kind: TracePostSend, Device: qp.ctx.attr.Name, QPN: qp.num, Op: opcodeNames[wr.Opcode], ID: wr.ID, Bytes: wr.Len(), Time: time.Now()}
		if d, ok := qp.drv.(WQEDriver); ok {
			e.WQEBytes = d.WQEBytes(wr)
		}
		if t.Event != nil {
			t.Event(e)
		}
		if t.text != nil {
			t.text.posted(&e, wr)
		}
	}
	if t.tasks != nil {
		t.tasks.drop(qp, all[n:])
	}
}

// moved is called when attributes of a QP have changed.
func (t *Tracer) moved(qp *QP, attr *QPAttr, mask QPAttrMask) {
	if t == nil {
		return
	}
	if t.packets != nil {
		t.packets.moved(qp, attr, mask)
	}
	if t.tasks != nil && mask&QPAttrState != 0 && attr.State == QPStateReset {
		t.tasks.closed(qp)
	}
}

// closed is called when a QP has ended.
func (t *Tracer) closed(qp *QP) {
	if t == nil {
		return
	}
	if t.packets != nil {
		t.packets.closed(qp)
	}
	if t.tasks != nil {
		t.tasks.closed(qp)
	}
}

// forget is called when a device is closed, or has another tracer.
func (t *Tracer) forget(c *Context) {
	if t == nil {
		return
	}
	if t.packets != nil {
		t.packets.forget(c)
	}
	if t.tasks != nil {
		t.tasks.forget(c)
	}
}

func (t *Tracer) postedRecvs(c *Context, qpn uint32, wrs []RecvWR) {
	for i := range wrs {
		wr := &wrs[i]
		if t.PostRecv != nil {
			t.PostRecv(qpn, wr)
		}
		if t.Event == nil && t.text == nil {
			continue
		}
		e := TraceEvent{Kind: TracePostRecv, Device: c.attr.Name, QPN: qpn, Op: "RECV", ID: wr.ID, Time: time.Now()}
		for i := range wr.SGL {
			e.Bytes += int(wr.SGL[i].Length)
		}
		if t.Event != nil {
			t.Event(e)
		}
		if t.text != nil {
			t.text.received(&e)
		}
	}
}

// polled is called with completions.
func (t *Tracer) polled(c *Context, wcs []WC) {
	for i := range wcs {
		wc := &wcs[i]
		if t.Completion != nil {
			t.Completion(wc)
		}
		if t.tasks != nil {
			t.tasks.end(c, wc)
		}
		if t.Event == nil && t.text == nil {
			continue
		}
		e := TraceEvent{
			Kind: TraceCompletion, Device: c.attr.Name, QPN: wc.QPN, ID: wc.ID, Bytes: int(wc.ByteLen), Status: wc.Status, Time: time.Now(),
		}
		if wc.Status == WCSuccess {
			e.Op = wc.Opcode.String()
		}
		if t.Event != nil {
			t.Event(e)
		}
		if t.text != nil {
			t.text.completed(&e, wc)
		}
	}
}

// SetTracer installs t for all objects of the device, or removes the tracer
// if t is nil. A tracer that is removed forgets what is under way on the device, as it does when
// that is closed. Without one, tracing costs a load and a predictable branch.
func (c *Context) SetTracer(t *Tracer) {
	if c.trace.Load() == t {
		return
	}
	t.forget(c) // what calls that ran when it was removed have left
	c.trace.Swap(t).forget(c)
}

// wcOpcodeNames are those of the specification.
var wcOpcodeNames = [...]string{
	WCSend: "SEND", WCWrite: "WRITE", WCRead: "READ", WCCompareSwap: "CMP_AND_SWP", WCFetchAdd: "FETCH_AND_ADD",
	WCBindMW: "BIND_MW", WCLocalInv: "LOCAL_INV", WCFlush: "FLUSH", WCAtomicWrite: "ATOMIC_WRITE",
	WCRecv: "RECV", WCRecvWriteWithImm: "RECV_RDMA_WITH_IMM",
}

// String names what completed as the specification does.
func (o WCOpcode) String() string {
	if int(o) < len(wcOpcodeNames) && wcOpcodeNames[o] != "" {
		return wcOpcodeNames[o]
	}
	return fmt.Sprintf("OPCODE(%d)", uint8(o))
}
