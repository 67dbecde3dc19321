//go:build linux

package soft

import (
	"testing"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/protocol"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/sys"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The steps of take, with an arrival and the peer's end between two of them.
func TestAnArrivalBetweenALookAndTheEndIsDelivered(t *testing.T) {
	v := newVictim(t, false)
	in := v.q.in
	v.receive()
	v.receive()
	var wcs [4]verbs.WC
	flushing := in.flushing.Load()
	require.Zero(t, in.takeArrived(wcs[:]))
	v.arrive(descriptorCopy{kind: protocol.KindWriteImm, imm: 5})
	v.q.peerFault(v, protocol.FaultGone)
	require.Zero(t, in.settle(wcs[:], flushing))
	got := v.poll()
	require.Len(t, got, 2)
	require.Equal(t, verbs.WCSuccess, got[0].Status)
	require.EqualValues(t, 5, got[0].Imm)
	require.Equal(t, verbs.WCWRFlushErr, got[1].Status)
	require.Zero(t, v.recv.work.Load(), "nothing is left to look at")
}

// Whoever comes late to the ring, after it has gone round, is not fooled.
func TestTheRingGoesRoundManyTimes(t *testing.T) {
	v := newVictim(t, false)
	laps := 5 * len(v.q.in.seg.Ring)
	for i := range laps {
		v.receive()
		require.Empty(t, v.poll())
		v.arriveHonestly(descriptorCopy{kind: protocol.KindWriteImm, imm: uint32(i)})
		got := v.poll()
		require.Len(t, got, 1)
		require.EqualValues(t, i, got[0].Imm)
	}
	consumed := v.q.in.seg.Header.Consumed.Load()
	require.Greater(t, int(consumed)+len(v.q.in.seg.Ring)/4+1, laps, "the peer is told in time")
}

func TestMemoryThatPeersReadCannotBeMappedForWriting(t *testing.T) {
	d, err := openDevice(DeviceName)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	p, err := d.AllocPD()
	require.NoError(t, err)
	for access, writable := range map[verbs.Access]bool{
		verbs.AccessRemoteRead:                                                     false,
		verbs.AccessLocalWrite | verbs.AccessRemoteRead:                            false,
		verbs.AccessLocalWrite | verbs.AccessRemoteWrite:                           true,
		verbs.AccessLocalWrite | verbs.AccessRemoteAtomic | verbs.AccessRemoteRead: true,
	} {
		mr, err := p.AllocMR(4096, access, verbs.MROptions{})
		require.NoError(t, err)
		r := mr.(*registration).region
		mem, err := sys.MapFD(r.fd, 0, 8192, unix.PROT_READ|unix.PROT_WRITE)
		require.Equal(t, writable, err == nil, "access %#x", access)
		if err == nil {
			sys.Unmap(mem, sys.OfAPeer)
		}
		require.Error(t, unix.Ftruncate(r.fd, 0), "its size is sealed")
		mr.Bytes()[0] = 1 // we write still
	}
}
