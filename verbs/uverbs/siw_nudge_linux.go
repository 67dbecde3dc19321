package uverbs

import (
	"math/rand/v2"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// nudgeID is the id of requests that are not the caller's. It is drawn so that
// no caller's is the same.
var nudgeID = rand.Uint64()

// Nudge sends the peer an RDMA WRITE of no bytes, which its kernel has to look
// at, if the QP is in RTS and nothing else is on its way there. The caller of
// the QP never sees its completion. It is for the connection manager: an
// acceptor's siw does not always look at what came before it was ready.
//
// Goroutines may call it at once with everything.
func (q *qp) Nudge() {
	q.postNudge()
	if q.failed.Load() && q.strands() {
		q.flush()
	}
}

func (q *qp) postNudge() {
	q.send.Lock()
	defer q.send.Unlock()
	s, ok := q.send.queue.(*siwQP)
	if !ok || q.failed.Load() || verbs.QPState(q.state.Load()) != verbs.QPStateRTS || q.dev.gone.Load() {
		return
	}
	if siwIsValid(s.send.word(s.send.next - 1).Load()) {
		return // the kernel has not taken the one before yet
	}
	if _, bell, _ := s.postSend([]verbs.SendWR{{ID: nudgeID, Opcode: verbs.OpWrite}}); bell {
		_ = q.send.bell.ring(true) // refused only by a QP that has failed
	}
}
