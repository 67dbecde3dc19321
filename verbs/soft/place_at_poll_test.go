//go:build linux

package soft_test

import (
	"bytes"
	"testing"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

// A short WRITE with immediate waits for the poll if both QPs say that it may, and neither has an SRQ.
func TestWhichWritesArePlacedAtThePoll(t *testing.T) {
	for _, c := range []struct {
		name          string
		from, to, srq bool
		bytes         int
		op            verbs.Opcode
		waits         bool
	}{
		{name: "short", from: true, to: true, bytes: 96, op: verbs.OpWriteWithImm, waits: true},
		{name: "long", from: true, to: true, bytes: 97, op: verbs.OpWriteWithImm},
		{name: "without immediate", from: true, to: true, bytes: 1, op: verbs.OpWrite},
		{name: "the sender does not", to: true, bytes: 1, op: verbs.OpWriteWithImm},
		{name: "the receiver does not", from: true, bytes: 1, op: verbs.OpWriteWithImm},
		{name: "an SRQ", from: true, to: true, srq: true, bytes: 1, op: verbs.OpWriteWithImm},
	} {
		t.Run(c.name, func(t *testing.T) {
			bothWays(t, func(t *testing.T) {
				sends, receives := usual, usual
				sends.atPoll, receives.atPoll, receives.srq = c.from, c.to, c.srq
				a, b := newEnd(t, sends), newEnd(t, receives)
				connect(t, a, b)
				wr := writeByte(b.mr.Addr(), b.mr.RKey())
				require.Equal(t, verbs.WCSuccess, a.post(t, wr), "the key is known")
				wr.Opcode, wr.Inline = c.op, [][]byte{bytes.Repeat([]byte{8}, c.bytes)}
				b.postRecv(t)
				_, err := a.qp.PostSend([]verbs.SendWR{wr})
				require.NoError(t, err)
				require.Equal(t, c.waits, b.mr.Bytes()[0] == 7)
				if c.op == verbs.OpWriteWithImm {
					poll(t, b.recv, 1)
				}
				require.Equal(t, wr.Inline[0], b.mr.Bytes()[:c.bytes])
				require.Zero(t, b.mr.Bytes()[c.bytes])
			})
		})
	}
}

// A window may get a key again that it had before, for other memory.
func TestAWriteInADescriptorGoesToWhatItsKeyIsBoundToNow(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		shape := usual
		shape.atPoll = true
		owner, friend := newEnd(t, shape), newEnd(t, shape)
		connect(t, owner, friend)
		mw, mr, key := owner.bindWindow(t)
		write := func(off int) {
			owner.postRecv(t)
			wr := writeByte(mr.Addr()+uint64(off), key)
			wr.Opcode = verbs.OpWriteWithImm
			require.Equal(t, verbs.WCSuccess, friend.post(t, wr))
			require.Equal(t, verbs.WCSuccess, poll(t, owner.recv, 1)[0].Status)
			require.Equal(t, byte(7), mr.Bytes()[off])
		}
		write(0)
		write(1) // by the fast path
		last := key
		for _, next := range []uint32{key + 1, key} {
			require.Equal(t, verbs.WCSuccess, owner.post(t, verbs.SendWR{Opcode: verbs.OpLocalInv, InvalidateRKey: last}))
			require.Equal(t, verbs.WCSuccess, owner.post(t, verbs.SendWR{Opcode: verbs.OpBindMW, Bind: &verbs.Bind{
				MW: mw, RKey: next, MR: mr, Addr: mr.Addr() + 64, Length: 64, Access: verbs.AccessRemoteWrite,
			}}))
			last = next
		}
		write(64)
		write(65)
	})
}
