package verbs

import (
	"fmt"
	"io"
	"sync"
)

// NewTextTracer returns a tracer that writes a line to w for each request that is posted
// and for each completion that is polled:
//
//	14:07:31.000512 mlx5_0 QP 0x1a2b post WRITE 4096 bytes in a WQE of 48 id 7 to 0x7f0000001000 key 0x11223344 signaled
//	14:07:31.000519 mlx5_0 QP 0x1a2b done id 7 SUCCESS 4096 bytes
//
// It is for looking at what a program does, and costs a Write each, one at a time. What w
// does not take is lost.
func NewTextTracer(device string, w io.Writer) *Tracer {
	t := &textTracer{device: device, w: w}
	return &Tracer{text: t}
}

type textTracer struct {
	device string
	mu     sync.Mutex
	w      io.Writer // guarded by mu
}

func (t *textTracer) line(e *TraceEvent, format string, args ...any) {
	queue := fmt.Sprintf("QP %#x", e.QPN)
	if e.QPN == 0 {
		queue = "SRQ"
	}
	text := fmt.Sprintf("%s %s %s "+format+"\n", append([]any{e.Time.Format("15:04:05.000000"), t.device, queue}, args...)...)
	t.mu.Lock()
	defer t.mu.Unlock()
	_, _ = io.WriteString(t.w, text) // as NewTextTracer says
}

func (t *textTracer) posted(e *TraceEvent, wr *SendWR) {
	wqe, more := "", ""
	if e.WQEBytes > 0 {
		wqe = fmt.Sprintf(" in a WQE of %d", e.WQEBytes)
	}
	switch wr.Opcode {
	case OpWrite, OpWriteWithImm, OpRead, OpCompareSwap, OpFetchAdd, OpAtomicWrite, OpFlush:
		more = fmt.Sprintf(" to %#x key %#x", wr.RemoteAddr, wr.RKey)
	case OpSendWithInv, OpLocalInv:
		more = fmt.Sprintf(" key %#x", wr.InvalidateRKey)
	}
	if wr.Opcode == OpWriteWithImm || wr.Opcode == OpSendWithImm {
		more += fmt.Sprintf(" imm %#x", wr.Imm)
	}
	if wr.Datagram != nil {
		more += fmt.Sprintf(" to QP %#x", wr.Datagram.QPN)
	}
	if wr.RemoteSRQ != 0 {
		more += fmt.Sprintf(" SRQ %#x", wr.RemoteSRQ) // of XRC
	}
	for _, f := range []struct {
		flag SendFlags
		name string
	}{{SendSignaled, "signaled"}, {SendSolicited, "solicited"}, {SendFence, "fence"}, {SendInline, "inline"}} {
		if wr.Flags&f.flag != 0 {
			more += " " + f.name
		}
	}
	t.line(e, "post %s %d bytes%s id %d%s", e.Op, e.Bytes, wqe, e.ID, more)
}

func (t *textTracer) received(e *TraceEvent) {
	t.line(e, "receive %d bytes id %d", e.Bytes, e.ID)
}

func (t *textTracer) completed(e *TraceEvent, wc *WC) {
	more := ""
	if wc.Flags&WCWithImm != 0 {
		more = fmt.Sprintf(" imm %#x", wc.Imm)
	}
	if wc.Flags&WCWithInv != 0 {
		more = fmt.Sprintf(" key %#x", wc.Imm)
	}
	if wc.SrcQPN != 0 {
		more += fmt.Sprintf(" from QP %#x", wc.SrcQPN)
	}
	if wc.VendorErr != 0 {
		more += fmt.Sprintf(" vendor error %#x", wc.VendorErr)
	}
	t.line(e, "done id %d %v %d bytes%s", wc.ID, wc.Status.String(), wc.ByteLen, more)
}
