package uverbs

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
)

// slowQueue is a queue in which a request takes its time.
type slowQueue struct {
	driver.QP
	begun, end chan struct{}
}

func (s *slowQueue) PostSend(wrs []verbs.SendWR) (n int, doorbell bool, err error) {
	close(s.begun)
	<-s.end // ends with the test's close
	return len(wrs), false, nil
}

func TestAQPThatCannotBeResetStaysAsItWas(t *testing.T) {
	for _, state := range []verbs.QPState{verbs.QPStateInit, verbs.QPStateRTS, verbs.QPStateErr} {
		q := &qp{dev: deviceWithoutFile(t)}
		q.state.Store(uint32(state))
		require.Error(t, q.Modify(&verbs.QPAttr{State: verbs.QPStateReset}, verbs.QPAttrState))
		require.Equal(t, state, verbs.QPState(q.state.Load()))
	}
}

func TestResetComesAfterTheRequestsThatAreBeingPosted(t *testing.T) {
	q := &qp{dev: deviceWithoutFile(t), sendLimit: 1}
	q.state.Store(uint32(verbs.QPStateRTS))
	var err error
	q.send.doorbell, err = q.dev.file.Prepare(abi.CmdPostSend, abi.BytesOf(&abi.PostSendIn{}), true)
	require.NoError(t, err)
	slow := &slowQueue{begun: make(chan struct{}), end: make(chan struct{})}
	q.send.queue = slow
	go q.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend}})
	<-slow.begun // ends with the post
	reset := make(chan error)
	go func() { reset <- q.Modify(&verbs.QPAttr{State: verbs.QPStateReset}, verbs.QPAttrState) }()
	for range 1000 {
		runtime.Gosched() // it may run, and must not get through
	}
	select { // never waits
	case <-reset:
		t.Fatal("a request is being posted for the state before")
	default:
	}
	require.Equal(t, verbs.QPStateRTS, verbs.QPState(q.state.Load()))
	close(slow.end)
	require.Error(t, <-reset) // ends with the post
}

// resetQueue is a queue that looks at its CQ when it is reset.
type resetQueue struct {
	driver.QP
	reset func()
}

func (r *resetQueue) Reset() { r.reset() }

// Whoever polls the CQ has its lock alone, so it must not find the QP while the QP
// is reset.
func TestNoCompletionOfAQPIsLeftWhenItIsReset(t *testing.T) {
	c, mem, q := cqWithQP(t)
	q.sendCQ, q.recvCQ, q.sendLimit = c, c, 4
	siwCompletes(mem, 0, 1, q.num, 0)
	siwCompletes(mem, 1, 2, q.num, 0)
	c.flushed(q.num, []uint64{3})
	resets := 0
	q.send.queue = &resetQueue{reset: func() {
		resets++
		var wcs [4]verbs.WC
		n, err := c.Poll(wcs[:])
		require.NoError(t, err)
		require.Empty(t, wcs[:n])
	}}
	q.send.posted = 3
	q.failed.Store(true)
	q.empty()
	require.Equal(t, 1, resets)
	require.Zero(t, q.sendDone.Load())
	require.Zero(t, q.send.posted)
}
