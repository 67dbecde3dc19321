package uverbs

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
)

const siwFlushed = 4

// Poll looks after the QPs of the errors that it gives out when it has let go of the CQ. By then
// another QP may have the number.
func TestAnErrorOfAQPThatIsGoneDoesNotEndTheNextOfItsNumber(t *testing.T) {
	o := newObjects(t)
	first, gone := o.newQP(t), o.newQP(t)
	siwCompletes(o.mem, 0, 1, first.num, siwFlushed)
	siwCompletes(o.mem, 1, 2, gone.num, siwFlushed)
	var next *qp
	o.kernel.begins = func(cmd abi.Command) {
		if cmd == abi.CmdModifyQP && next == nil { // of the first QP, which is looked after
			next = new(qp)
			require.NoError(t, gone.Destroy())
			var err error
			next, err = o.createQP()
			require.NoError(t, err)
			require.Equal(t, gone.num, next.num)
		}
	}
	n, err := o.cq.Poll(make([]verbs.WC, 4))
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.False(t, next.failed.Load())
	require.NotContains(t, o.kernel.commandsOf(next.handle), abi.CmdModifyQP, "it is taken to ERR")
}

// Nor the QP itself, after RESET.
func TestAnErrorOfBeforeRESETDoesNotEndAQP(t *testing.T) {
	q := &qp{num: 9, rc: true}
	d, _ := recordingDevice(t)
	q.dev = d
	told := 0
	d.submit = func(_ []byte, r *abi.Request) error {
		told++
		return nil
	}
	c := &cq{dev: d, qps: map[uint32]*qp{9: q}}
	q.sendCQ, q.recvCQ = c, c
	wcs := []verbs.WC{{QPN: 9, Status: verbs.WCWRFlushErr}}
	n, failed := c.count(wcs)
	require.Equal(t, 1, n)
	require.True(t, failed)
	q.empty() // RESET
	c.noteFailure(&wcs[0])
	require.False(t, q.failed.Load())
	require.Zero(t, told)
}

// The same of an event that was not read before.
func TestAnEventOfBeforeRESETDoesNotEndAQP(t *testing.T) {
	d, _ := recordingDevice(t)
	var state verbs.QPState // at the kernel
	var modified []verbs.QPState
	d.submit = func(_ []byte, r *abi.Request) error {
		switch r.Cmd {
		case abi.CmdModifyQP:
			state = verbs.QPState(abi.ViewAt[abi.ModifyQPIn](r.In, 0).QPState)
			modified = append(modified, state)
		case abi.CmdQueryQP:
			abi.ViewAt[abi.QueryQPOut](r.Out, 0).QPState = uint8(state)
		}
		return nil
	}
	c := &cq{dev: d, qps: make(map[uint32]*qp)}
	q := &qp{dev: d, num: 9, rc: true, sendCQ: c, recvCQ: c}
	id, err := d.add(q)
	require.NoError(t, err)
	fatal := abi.AsyncEventDesc{Element: id, EventType: uint32(verbs.EventQPFatal)}
	state = verbs.QPStateErr
	require.NoError(t, q.Modify(&verbs.QPAttr{State: verbs.QPStateReset}, verbs.QPAttrState))
	d.takeEvent(fatal)
	require.False(t, q.failed.Load())
	require.Equal(t, []verbs.QPState{verbs.QPStateReset}, modified)

	state = verbs.QPStateErr
	d.takeEvent(fatal)
	require.True(t, q.failed.Load())
	require.Equal(t, []verbs.QPState{verbs.QPStateReset, verbs.QPStateErr}, modified, "its receives are flushed")
}
