//go:build linux

package soft_test

import (
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

func TestWriteWithImmediateArrives(t *testing.T) {
	a, b := newPair(t, usual)
	n, err := b.qp.PostRecv([]verbs.RecvWR{{ID: 7}})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.NoError(t, b.recv.Arm(false))
	_, err = a.qp.PostSend([]verbs.SendWR{{
		ID: 5, Opcode: verbs.OpWriteWithImm, Flags: verbs.SendInline | verbs.SendSignaled,
		Imm: 0x01020304, Inline: [][]byte{[]byte("hello "), []byte("world")}, RemoteAddr: b.mr.Addr() + 8, RKey: b.mr.RKey(),
	}})
	require.NoError(t, err)
	require.NoError(t, b.ch.Wait(time.Now().Add(5*time.Second)))
	got := poll(t, b.recv, 1)[0]
	require.Equal(t, verbs.WC{ID: 7, Opcode: verbs.WCRecvWriteWithImm, Flags: verbs.WCWithImm, ByteLen: 11, Imm: 0x01020304, QPN: b.qp.Num()}, got)
	require.Equal(t, "hello world", string(b.mr.Bytes()[8:19]))
	sent := poll(t, a.send, 1)[0]
	require.Equal(t, verbs.WC{ID: 5, Opcode: verbs.WCWrite, ByteLen: 11, QPN: a.qp.Num()}, sent)
}
