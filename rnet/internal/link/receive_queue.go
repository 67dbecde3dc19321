package link

import (
	"fmt"

	"github.com/seed-b9b531af/ramjet/ring"
	"github.com/seed-b9b531af/ramjet/verbs"
)

// repostBatch is how many receives are posted again at a time, or a quarter of them if that is
// less.
const repostBatch = 64

// bareReceives are what is posted: receives without a buffer, for messages that go to
// the ring. All links have them together, and nobody writes to them.
var bareReceives [repostBatch]verbs.RecvWR

// receiveQueue is the QP's. The poll lock guards it.
type receiveQueue struct {
	qp        *verbs.QP
	emulation *emulation
	batch     int // repostBatch or less
	used      int // receives used up and not posted again
	usedData  int // of these, how many count as slots
	slots     ring.RecvSlots
}

// init makes the queue that of a QP.
func (q *receiveQueue) init(qp *verbs.QP, has *sizes) error {
	q.qp, q.emulation = qp, has.emulation
	q.batch = min(repostBatch, int(has.slots)/4)
	return q.slots.Init(int(has.slots))
}

// fill fills the receive queue before the peer can write.
func (q *receiveQueue) fill(length int, back *given) error {
	for length > 0 {
		n, err := q.post(length)
		if err != nil {
			return err
		}
		length -= n
	}
	back.posted.Store(q.slots.Posted())
	return nil
}

// post posts up to count receives and returns how many.
func (q *receiveQueue) post(count int) (int, error) {
	if q.emulation != nil {
		n, err := q.qp.PostRecv(q.emulation.receives(count))
		q.emulation.posted(n)
		return n, err
	}
	return q.qp.PostRecv(bareReceives[:min(count, len(bareReceives))])
}

// due reports whether it is time to post again.
func (q *receiveQueue) due() bool {
	return q.used >= q.batch || q.used-q.usedData >= controlUnposted
}

// repost posts receives in the place of those used up and reports whether the
// peer may want to know.
func (q *receiveQueue) repost(back *given) (due bool, err error) {
	for q.used > 0 {
		n, err := q.post(q.used)
		if err != nil {
			return false, fmt.Errorf("rnet: post receives: %w", err)
		}
		q.used -= n
	}
	q.slots.Post(q.usedData)
	q.usedData = 0
	back.posted.Store(q.slots.Posted())
	if due = q.slots.CreditDue(); due {
		q.slots.TakeCredit()
	}
	return due, nil
}
