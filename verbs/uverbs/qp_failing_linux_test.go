package uverbs

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
)

// rxe flushes the receives that are there when the QP is taken to ERR, and looks at later ones only
// when it is told again.
func TestAReceiveThatComesWhileAQPFailsIsFlushed(t *testing.T) {
	d, _ := recordingDevice(t)
	q := &qp{dev: d, sendLimit: batch, recvLimit: batch}
	q.state.Store(uint32(verbs.QPStateRTS))
	q.queue = newRxeQP(t, make(sharedMemory), 5, batch)
	q.send.queue, q.recv.queue = q.queue, q.queue
	var told []uint32 // how many receives were there when the kernel was told of ERR
	d.submit = func(_ []byte, r *abi.Request) error {
		if r.Cmd != abi.CmdModifyQP {
			return nil
		}
		told = append(told, q.recv.posted)
		if len(told) == 1 { // it has flushed, and not returned yet
			n, err := q.PostRecv(make([]verbs.RecvWR, 1))
			require.NoError(t, err)
			require.Equal(t, 1, n)
		}
		return nil
	}
	require.NoError(t, q.Modify(&verbs.QPAttr{State: verbs.QPStateErr}, verbs.QPAttrState))
	require.NotEmpty(t, told)
	require.EqualValues(t, 1, told[len(told)-1], "nobody tells the kernel of the receive: %v", told)
}
