package uverbs

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
)

// recordingDevice is a device whose kernel writes down which prepared commands it is given.
// commands returns those since it was called last. Each command that comes
// by write(2) is one message in a socket.
func recordingDevice(t testing.TB) (d *device, commands func() []abi.Command) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	d = newDevice(rdmahost.Device{Name: "test0"}, fds[0])
	t.Cleanup(func() {
		d.file.FreePrepared()
		require.NoError(t, unix.Close(fds[0]))
		require.NoError(t, unix.Close(fds[1]))
	})
	return d, func() (list []abi.Command) {
		t.Helper()
		b := make([]byte, abi.CellSize)
		for {
			n, _, err := unix.Recvfrom(fds[1], b, unix.MSG_DONTWAIT)
			if err == unix.EAGAIN {
				return list
			}
			require.NoError(t, err)
			header := abi.ViewAt[abi.CommandHeader](b, 0)
			require.EqualValues(t, n, 4*header.InWords, "a whole command")
			list = append(list, abi.Command(header.Command))
		}
	}
}

const batch = 16

// batchQueues are queues for a batch of sends and one of receives, and the
// same of receives for an SRQ.
func batchQueues(t testing.TB) map[string]struct {
	qp  driver.QP
	srq driver.SRQ
	cq  driver.CQ
} {
	t.Helper()
	rxeMemory, siwMemory := make(sharedMemory), newSiwMemory(batch)
	return map[string]struct {
		qp  driver.QP
		srq driver.SRQ
		cq  driver.CQ
	}{
		"rxe": {newRxeQP(t, rxeMemory, 5, batch), newRxeSRQ(t, rxeMemory, 5, batch), newRxeCQ(t, rxeMemory, 4)},
		"siw": {newSiwQP(t, siwMemory, batch), newSiwSRQ(t, siwMemory, batch), newSiwCQ(t, siwMemory, batch)},
	}
}

func TestABatchOfSendsIsOneSystemCallAndReceivesAreNone(t *testing.T) {
	sends := make([]verbs.SendWR, batch)
	for i := range sends {
		sends[i] = verbs.SendWR{ID: uint64(i), Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
	}
	receives := make([]verbs.RecvWR, batch)
	for name, queues := range batchQueues(t) {
		t.Run(name, func(t *testing.T) {
			d, commands := recordingDevice(t)
			q := &qp{dev: d, sendLimit: batch, recvLimit: batch}
			q.state.Store(uint32(verbs.QPStateRTS))
			q.send.queue, q.recv.queue = queues.qp, queues.qp
			var err error
			q.send.doorbell, err = d.file.Prepare(abi.CmdPostSend, abi.BytesOf(&abi.PostSendIn{WQESize: abi.SendWRSize}), true)
			require.NoError(t, err)

			n, err := q.PostSend(sends)
			require.NoError(t, err)
			require.Equal(t, batch, n)
			require.Equal(t, []abi.Command{abi.CmdPostSend}, commands())
			n, err = q.PostSend(sends)
			require.ErrorIs(t, err, verbs.ErrQueueFull)
			require.Zero(t, n)
			require.Empty(t, commands(), "there is nothing to tell")

			n, err = q.PostRecv(receives)
			require.NoError(t, err)
			require.Equal(t, batch, n)
			s := &srq{dev: d, queue: queues.srq}
			n, err = s.PostRecv(receives)
			require.NoError(t, err)
			require.Equal(t, batch, n)
			c := &cq{dev: d, queue: queues.cq, size: batch}
			n, err = c.Poll(make([]verbs.WC, batch))
			require.NoError(t, err)
			require.Zero(t, n)
			require.Empty(t, commands(), "receives and polls are no business of the kernel's")
		})
	}
}

func TestABatchRingsOnceThoughARequestInItIsBad(t *testing.T) {
	good := verbs.SendWR{Opcode: verbs.OpSend}
	bad := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendInline, Inline: [][]byte{make([]byte, 1000)}}
	for name, queues := range batchQueues(t) {
		t.Run(name, func(t *testing.T) {
			d, commands := recordingDevice(t)
			q := &qp{dev: d, sendLimit: batch}
			q.state.Store(uint32(verbs.QPStateRTS))
			q.send.queue = queues.qp
			var err error
			q.send.doorbell, err = d.file.Prepare(abi.CmdPostSend, abi.BytesOf(&abi.PostSendIn{WQESize: abi.SendWRSize}), true)
			require.NoError(t, err)
			n, err := q.PostSend([]verbs.SendWR{good, good, bad, good})
			require.ErrorIs(t, err, verbs.ErrInvalid)
			require.Equal(t, 2, n)
			require.Equal(t, []abi.Command{abi.CmdPostSend}, commands())
			n, err = q.PostSend([]verbs.SendWR{bad})
			require.ErrorIs(t, err, verbs.ErrInvalid)
			require.Zero(t, n)
			require.Empty(t, commands())
		})
	}
}

func TestSiwIsToldOfABatchOnlyIfItMayHaveStoppedLooking(t *testing.T) {
	d, commands := recordingDevice(t)
	mem := newSiwMemory(batch)
	queue := newSiwQP(t, mem, batch)
	q := &qp{dev: d, sendLimit: batch}
	q.state.Store(uint32(verbs.QPStateRTS))
	q.send.queue = queue
	var err error
	q.send.doorbell, err = d.file.Prepare(abi.CmdPostSend, abi.BytesOf(&abi.PostSendIn{WQESize: abi.SendWRSize}), true)
	require.NoError(t, err)
	post := func() []abi.Command {
		t.Helper()
		_, err := q.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend}, {Opcode: verbs.OpSend}})
		require.NoError(t, err)
		return commands()
	}
	require.Len(t, post(), 1)
	require.Empty(t, post(), "it has not come to those before")
	for i := range 4 {
		siwTakes(mem, i)
	}
	require.Len(t, post(), 1)
}
