//go:build amd64 || arm64

package mlx5

import (
	"time"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/fabric"
)

// head returns the control segment of the WQE that is next. If that is none, the QP is in
// the error state and it is false.
func (q *queuePair) head() (control, bool) {
	b, ok := q.read(segmentSize)
	w := parseControl(b)
	q.op = opcode(b[3])
	switch {
	case !ok:
		q.lose()
		return w, false
	case uint32(q.Posted-q.Done) > q.sendSize: // which post has said
		q.lose()
		q.Event(fabric.EventQPFatal)
		return w, false
	case b[0] != 0: // opmod, of which these operations have no other
		q.Port.Fabric().Violation("QP %#x: WQE %d has the modifier %#x", q.Number, q.Done, b[0])
		q.lose()
		q.Event(fabric.EventQPFatal)
		return w, false
	case w.Index != q.Done || w.qpn != q.Number || w.size == 0 || w.size > maxWQE || w.Slots > q.Posted-q.Done:
		q.Port.Fabric().Violation("QP %#x: WQE %d of %d posted is for WQE %d of QP %#x with %d bytes", q.Number, q.Done, q.Posted, w.Index, w.qpn, w.size)
		q.lose()
		q.Event(fabric.EventQPFatal)
		return w, false
	}
	return w, true
}

// lose ends a QP whose send queue makes no sense. That it is memory that the program no longer has
// is no violation: the device would have pinned it.
func (q *queuePair) lose() {
	q.State = fabric.StateError
	q.Posted = q.Done
}

// read returns n bytes of the send queue from the WQE that is next; the queue is a ring.
func (q *queuePair) read(n int) ([]byte, bool) { return q.readAt(q.Done, n) }

func (q *queuePair) readAt(index uint16, n int) ([]byte, bool) {
	b := make([]byte, n)
	at := (uint32(index) & (q.sendSize - 1)) * basicBlock
	first := min(n, int(q.sendSize*basicBlock-at))
	memory := q.context.memory
	return b, memory.Read(q.send+uint64(at), b[:first]) == nil && memory.Read(q.send, b[first:]) == nil
}

// Next takes the WQE apart that is next.
func (q *queuePair) Next() *fabric.Request {
	c, ok := q.head()
	if !ok {
		return nil
	}
	b, ok := q.read(c.size)
	if !ok { // since head
		q.lose()
		return nil
	}
	w, err := parseWQE(b, q.Service)
	if err != nil {
		q.Port.Fabric().Violation("QP %#x: %v", q.Number, err)
		q.Fail(&c.Request, fabric.LocalOperation)
		q.Done += c.Slots
		return nil
	}
	if w.Op == fabric.ChangeKey {
		w.Change = func() fabric.Status { return q.changeKey(&w.keyChange) }
	}
	q.wqe = b
	return &w.Request
}

// Begin checks what is said of a WQE once, and tells those who trace them.
func (q *queuePair) Begin(w *fabric.Request) {
	f := q.Port.Fabric()
	if !q.unchanged(q.Done, q.wqe) {
		f.Violation("QP %#x: WQE %d was changed after its doorbell", q.Number, q.Done)
	}
	if f.WQE != nil {
		f.WQE(q.wqe)
	}
	if mode := fence(q.wqe); q.changedKey && (mode == 0 || mode == fenceReads) {
		f.Violation("QP %#x: WQE %d is not fenced, behind a UMR", q.Number, q.Done)
	}
	q.changedKey = w.Op == fabric.ChangeKey
}

// sendRest sends the datagrams of a QP that is about to be destroyed. A device has seen a doorbell
// long before the command that follows it, and programs count on that: nothing tells them when an
// unsignaled datagram is on its way.
func (q *queuePair) sendRest() {
	if q.context.takeDoorbells() {
		q.context.readRecords()
	}
	for q.Done != q.Posted && q.Execute(time.Now()) {
	}
}
