//go:build linux

package soft

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/protocol"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A message to a device must not go to a group.
func TestADeviceIsNotNamedLikeAGroup(t *testing.T) {
	for range 1 << 13 {
		gid := newGID()
		require.False(t, gid.IsMulticast())
	}
}

// A device's name is no secret, so a stranger may have taken names that are made of it.
func TestNobodyKeepsADeviceOutOfAGroup(t *testing.T) {
	d, err := openDevice(DeviceName)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	group := verbs.GID{0xff, 0x0e, 15: 7}
	taken, err := net.ListenUnix("unixpacket", &net.UnixAddr{
		Net: "unixpacket", Name: fmt.Sprintf("@%s%x-%x", groupPrefix, group[:], d.gid[:]),
	})
	require.NoError(t, err)
	defer taken.Close()
	mark, err := markGroup(group, d.gid)
	require.NoError(t, err)
	defer mark.ln.Close()
	devices, err := groupsOf(group)
	require.NoError(t, err)
	require.Contains(t, devices, d.gid)
	other := group
	other[15]++
	devices, err = groupsOf(other)
	require.NoError(t, err)
	require.Empty(t, devices)
}

// A device that is not there is not dialed for each message, one that is there is
// dialed once, and the number of routes is bounded.
func TestRoutesAreRemembered(t *testing.T) {
	d, err := openDevice(DeviceName)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	r := &d.routes
	r.begin()
	other, err := openDevice(DeviceName)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, other.Close()) })
	message := make([]byte, protocol.DatagramHeaderSize)
	r.send(other.gid, message)
	there := r.route(other.gid)
	require.NotNil(t, there.conn)
	r.send(other.gid, message)
	require.Same(t, there, r.route(other.gid))

	nobody := verbs.GID{1}
	r.send(nobody, message)
	known := r.route(nobody)
	require.Nil(t, known.conn)
	known.until = time.Now().Add(time.Hour)
	r.send(nobody, message)
	require.Same(t, known, r.route(nobody), "not dialed again")
	known.until = time.Time{}
	r.send(nobody, message)
	require.NotSame(t, known, r.route(nobody), "dialed again")

	for i := range 2 * maxRoutes {
		r.send(verbs.GID{2, byte(i), byte(i >> 8)}, message)
		require.LessOrEqual(t, len(*r.table.Load()), maxRoutes)
	}
	require.Same(t, there, r.route(other.gid), "it is of use, and those to nobody are not")
	require.True(t, r.end())
	r.send(other.gid, message)
	require.Nil(t, r.route(other.gid), "there is no QP any more")
}

// Whoever sends while a peer hangs up, and while the last QP goes, finds a route that
// works or none, and no connection is left.
func TestManySendersWhileRoutesEnd(t *testing.T) {
	CheckLeaks(t)
	d, err := openDevice(DeviceName)
	require.NoError(t, err)
	other, err := openDevice(DeviceName)
	require.NoError(t, err)
	other.listener.begin()
	d.routes.begin()
	message := make([]byte, protocol.DatagramHeaderSize)
	(&protocol.Datagram{}).Encode(message)
	var senders sync.WaitGroup
	for range 4 {
		senders.Go(func() {
			for i := range 500 {
				d.routes.send(other.gid, message)
				d.routes.send(verbs.GID{1, byte(i)}, message)
			}
		})
	}
	for range 50 {
		other.listener.endDatagrams()
		time.Sleep(100 * time.Microsecond)
	}
	require.True(t, d.routes.end())
	senders.Wait()
	require.Nil(t, d.routes.table.Load())
	require.NoError(t, d.Close())
	require.NoError(t, other.Close())
}

// A peer that is admitted may send what it likes: it is hung up on, and the QP
// receives from others.
func TestPeersThatBreakTheRulesOfDatagramsAreHungUpOn(t *testing.T) {
	d, err := openDevice(DeviceName)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	p, err := d.AllocPD()
	require.NoError(t, err)
	c, err := d.CreateCQ(&verbs.CQAttr{CQE: 16}, nil)
	require.NoError(t, err)
	made, err := p.CreateQP(&verbs.QPInitAttr{Type: verbs.QPTypeUD, Cap: verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8}}, c, c, nil)
	require.NoError(t, err)
	q := made.(*datagramQP)
	for _, s := range []verbs.QPState{verbs.QPStateInit, verbs.QPStateRTR} {
		require.NoError(t, q.Modify(&verbs.QPAttr{State: s, QKey: 7}, verbs.QPAttrState|verbs.QPAttrQKey))
	}
	mr, err := p.AllocMR(4096, verbs.AccessLocalWrite, verbs.MROptions{})
	require.NoError(t, err)
	dial := func() *net.UnixConn {
		conn, err := net.DialUnix("unixpacket", nil, unixName(d.gid))
		require.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		_, err = conn.Write(protocol.EncodeBare(protocol.KindDatagrams))
		require.NoError(t, err)
		return conn
	}
	message := func(change func(*protocol.Datagram)) []byte {
		h := protocol.Datagram{From: protocol.Endpoint{QPN: 3}, To: protocol.Endpoint{GID: d.gid, QPN: q.num}, QKey: 7}
		change(&h)
		b := make([]byte, protocol.DatagramHeaderSize+4)
		h.Encode(b)
		return b
	}
	for name, b := range map[string][]byte{
		"too short":         message(func(*protocol.Datagram) {})[:protocol.DatagramHeaderSize-1],
		"too long":          append(message(func(*protocol.Datagram) {}), make([]byte, protocol.MaxDatagram)...),
		"unknown flags":     message(func(h *protocol.Datagram) { h.Flags = 1 << 7 }),
		"a number too long": message(func(h *protocol.Datagram) { h.From.QPN = 1 << 24 }),
		"another kind":      protocol.EncodeBare(protocol.KindNotify),
	} {
		t.Run(name, func(t *testing.T) {
			conn := dial()
			_, err := conn.Write(b)
			require.NoError(t, err)
			waitForHangUp(t, conn)
		})
	}
	t.Run("descriptors", func(t *testing.T) {
		conn := dial()
		raw, err := conn.SyscallConn()
		require.NoError(t, err)
		err = sendPacket(raw, message(func(*protocol.Datagram) {}), 0)
		if err == nil { // else the kernel has refused it
			waitForHangUp(t, conn)
		} else {
			require.ErrorIs(t, err, unix.EPERM)
		}
	})
	conn := dial()
	_, err = q.PostRecv([]verbs.RecvWR{{ID: 9, SGL: []verbs.SGE{{Addr: mr.Addr(), Length: 100, LKey: mr.LKey()}}}})
	require.NoError(t, err)
	for _, b := range [][]byte{
		message(func(h *protocol.Datagram) { h.To.GID[3]++ }),
		message(func(h *protocol.Datagram) { h.To.QPN++ }),
		message(func(h *protocol.Datagram) { h.QKey++ }),
		message(func(*protocol.Datagram) {}),
	} {
		_, err := conn.Write(b)
		require.NoError(t, err)
	}
	var wcs [4]verbs.WC
	n := 0
	for deadline := time.Now().Add(10 * time.Second); n == 0; time.Sleep(time.Millisecond) {
		n, err = c.Poll(wcs[:])
		require.NoError(t, err)
		require.True(t, time.Now().Before(deadline))
	}
	require.Equal(t, 1, n, "of the last one")
	require.EqualValues(t, 9, wcs[0].ID)
	require.EqualValues(t, 3, wcs[0].SrcQPN)
}

func waitForHangUp(t *testing.T, conn *net.UnixConn) {
	t.Helper()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(10*time.Second)))
	for {
		n, err := conn.Read(make([]byte, 100)) // it may say welcome
		if err != nil || n == 0 {
			var timeout net.Error
			require.False(t, errors.As(err, &timeout) && timeout.Timeout(), "it has not hung up")
			return
		}
	}
}
