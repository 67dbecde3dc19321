package verbs

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// NewTextTracer returns a tracer that writes a line to w for each request that is posted
// and for each completion that is polled:
//
//	14:07:31.000512 soft0 QP 0x1a2b post WRITE 4096 bytes id 7 to 0x7f0000001000 key 0x11223344 signaled
//	14:07:31.000519 soft0 QP 0x1a2b done id 7 SUCCESS 4096 bytes
//
// It is for looking at what a program does, and costs a Write each, one at a time. What w
// does not take is lost.
func NewTextTracer(device string, w io.Writer) *Tracer {
	t := &textTracer{device: device, w: w}
	return &Tracer{PostSend: t.postSend, PostRecv: t.postRecv, Completion: t.completion}
}

type textTracer struct {
	device string
	mu     sync.Mutex
	w      io.Writer // guarded by mu
}

func (t *textTracer) line(qpn uint32, format string, args ...any) {
	queue := fmt.Sprintf("QP %#x", qpn)
	if qpn == 0 {
		queue = "SRQ"
	}
	text := fmt.Sprintf("%s %s %s "+format+"\n", append([]any{time.Now().Format("15:04:05.000000"), t.device, queue}, args...)...)
	t.mu.Lock()
	defer t.mu.Unlock()
	_, _ = io.WriteString(t.w, text) // as NewTextTracer says
}

func (t *textTracer) postSend(qpn uint32, wr *SendWR) {
	more := ""
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
	for _, f := range []struct {
		flag SendFlags
		name string
	}{{SendSignaled, "signaled"}, {SendSolicited, "solicited"}, {SendFence, "fence"}, {SendInline, "inline"}} {
		if wr.Flags&f.flag != 0 {
			more += " " + f.name
		}
	}
	t.line(qpn, "post %v %d bytes id %d%s", wr.Opcode, wr.Len(), wr.ID, more)
}

func (t *textTracer) postRecv(qpn uint32, wr *RecvWR) {
	n := 0
	for i := range wr.SGL {
		n += int(wr.SGL[i].Length)
	}
	t.line(qpn, "receive %d bytes id %d", n, wr.ID)
}

func (t *textTracer) completion(wc *WC) {
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
	t.line(wc.QPN, "done id %d %v %d bytes%s", wc.ID, wc.Status.String(), wc.ByteLen, more)
}
