//go:build linux

package soft

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/samehost"
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
	defer mark.Close()
	names, err := samehost.Names(os.Geteuid())
	require.NoError(t, err)
	var devices []verbs.GID
	for _, name := range names {
		if of, device, ok := memberOf(name); ok && of == group {
			devices = append(devices, device)
		}
	}
	require.Contains(t, devices, d.gid)
}

func TestNamesThatMarkNoMember(t *testing.T) {
	gid := strings.Repeat("ab", 16)
	_, _, ok := memberOf("@" + groupPrefix + gid + "-" + gid + "-1")
	require.True(t, ok)
	for _, name := range []string{
		"", "@", "@" + groupPrefix, "@" + groupPrefix + gid, "@" + groupPrefix + gid + "-" + gid, groupPrefix + gid + "-" + gid + "-1",
		"@" + groupPrefix + gid + "-" + gid[1:] + "-1", "@" + groupPrefix + gid + "00-" + gid + "-1", "@" + groupPrefix + gid + "-" + gid[2:] + "xy-1",
	} {
		_, _, ok := memberOf(name)
		require.False(t, ok, name)
	}
}

type closerFunc func() error

func (f closerFunc) Close() error { return f() }

// Before Linux 6.16 a stranger who has connected to the mark of a group can make its close take a second.
func TestDatagramsComeWhileTheMarkOfAGroupIsClosed(t *testing.T) {
	d, err := openDevice(DeviceName)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	group := verbs.GID{0xff, 0x0e, 8}
	for name, end := range map[string]func(q *datagramQP) error{
		"DetachMulticast": func(q *datagramQP) error { return q.DetachMulticast(group, 0) },
		"Destroy":         (*datagramQP).Destroy,
	} {
		t.Run(name, func(t *testing.T) {
			q := newDatagramQP(t, d)
			require.NoError(t, q.AttachMulticast(group, 0))
			g := d.datagrams.groups[group]
			mark, closed := g.mark, false
			g.mark = closerFunc(func() error {
				if closed = d.datagrams.TryLock(); closed {
					d.datagrams.Unlock()
				}
				return mark.Close()
			})
			require.NoError(t, end(q))
			require.True(t, closed, "the table is not locked meanwhile")
		})
	}
}

// told has the kernel's part in a look for members played by tell, until the end of the test.
func told(t *testing.T, tell func(ended <-chan struct{}, see func(name string)) error) {
	before := eachName
	eachName = func(_ int, ended <-chan struct{}, see func(string)) error { return tell(ended, see) }
	t.Cleanup(func() { eachName = before })
}

func nameOfMember(group, device verbs.GID) string {
	return fmt.Sprintf("@%s%x-%x-1", groupPrefix, group[:], device[:])
}

// senderToGroups returns a device that can send, which is closed before told is over.
func senderToGroups(t *testing.T) *device {
	t.Helper()
	d, err := openDevice(DeviceName)
	require.NoError(t, err)
	d.routes.begin()
	t.Cleanup(func() {
		d.routes.end()
		require.NoError(t, d.Close())
	})
	return d
}

// A look costs as much as there are sockets on the host, whoever has them.
func TestOneLookIsForAllGroups(t *testing.T) {
	var looks, atOnce, most atomic.Int32
	told(t, func(<-chan struct{}, func(string)) error {
		most.Store(max(most.Load(), atOnce.Add(1)))
		defer atOnce.Add(-1)
		looks.Add(1)
		return nil
	})
	d := senderToGroups(t)
	const groups = 50
	begun := time.Now()
	for range 200 {
		for i := range groups {
			d.membersElsewhere(verbs.GID{0xff, 0x0e, 15: byte(i)}, nil)
		}
		time.Sleep(time.Millisecond)
	}
	require.LessOrEqual(t, int(looks.Load()), groups+int(time.Since(begun)/groupTime)+1)
	require.EqualValues(t, 1, most.Load())
}

// The names of strangers make a look long, and members that it has found are not to wait for
// its end.
func TestMembersAreKnownOnceTheyAreFound(t *testing.T) {
	CheckLeaks(t)
	group, first, second := verbs.GID{0xff, 0x0e, 12}, verbs.GID{1}, verbs.GID{2}
	goOn := make(chan struct{})
	told(t, func(_ <-chan struct{}, see func(string)) error {
		see(nameOfMember(group, first))
		<-goOn
		see(nameOfMember(group, second))
		<-goOn
		return nil
	})
	d := senderToGroups(t)
	require.Empty(t, d.membersElsewhere(group, []byte("1")))
	hang.Eventually(t, "the message has gone to the first member", func() bool { return d.routes.route(first) != nil })
	require.Equal(t, []verbs.GID{first}, d.membersElsewhere(group, []byte("2")))
	require.Nil(t, d.routes.route(second))
	goOn <- struct{}{}
	hang.Eventually(t, "what has waited has gone to the second", func() bool { return d.routes.route(second) != nil })
	g := d.routes.groups.byGID[group]
	require.Equal(t, [][]byte{[]byte("1"), []byte("2")}, g.waiting)
	goOn <- struct{}{}
	hang.Eventually(t, "nothing waits any more", func() bool {
		d.routes.mu.Lock()
		defer d.routes.mu.Unlock()
		return g.waiting == nil && d.routes.groups.waiting == 0
	})
	require.Equal(t, []verbs.GID{first, second}, d.membersElsewhere(group, []byte("3")))
	close(goOn)
}

// A look that begins before the first message to a group may have passed over a member that
// joined before that.
func TestAGroupIsLookedForAfterItsFirstMessage(t *testing.T) {
	one, other, member := verbs.GID{0xff, 0x0e, 13}, verbs.GID{0xff, 0x0e, 14}, verbs.GID{3}
	goOn := make(chan struct{})
	var looks atomic.Int32
	told(t, func(_ <-chan struct{}, see func(string)) error {
		if looks.Add(1) == 1 {
			<-goOn
			return nil
		}
		see(nameOfMember(other, member))
		return nil
	})
	d := senderToGroups(t)
	d.membersElsewhere(one, nil)
	require.Empty(t, d.membersElsewhere(other, nil))
	close(goOn)
	hang.Eventually(t, "the message has gone to the member", func() bool { return d.routes.route(member) != nil })
}

// Without a descriptor nobody can be asked.
func TestMembersStayKnownWhileNobodyTells(t *testing.T) {
	group, member := verbs.GID{0xff, 0x0e, 15}, verbs.GID{4}
	var refused atomic.Bool
	var looks atomic.Int32
	told(t, func(_ <-chan struct{}, see func(string)) error {
		defer looks.Add(1)
		if refused.Load() {
			return unix.EMFILE
		}
		see(nameOfMember(group, member))
		return nil
	})
	d := senderToGroups(t)
	next := func() []verbs.GID {
		k := d.routes.groups
		hang.Eventually(t, "a look is over", func() bool {
			d.membersElsewhere(group, nil)
			d.routes.mu.Lock()
			defer d.routes.mu.Unlock()
			k.until = time.Time{}
			return !k.looking && k.looks > 0
		})
		return d.membersElsewhere(group, nil)
	}
	require.Equal(t, []verbs.GID{member}, next())
	refused.Store(true)
	for before := looks.Load(); looks.Load() < before+3; {
		require.Equal(t, []verbs.GID{member}, next())
	}
}

// However long a look takes, nobody who closes waits for it.
func TestALookForMembersEndsWithTheQPs(t *testing.T) {
	CheckLeaks(t)
	told(t, func(ended <-chan struct{}, _ func(string)) error {
		<-ended
		return os.ErrClosed
	})
	d := senderToGroups(t)
	group := verbs.GID{0xff, 0x0e, 16}
	for range 3 * maxGroupQueue {
		d.membersElsewhere(group, nil)
	}
	k := d.routes.groups
	require.Len(t, k.byGID[group].waiting, maxGroupQueue)
	for i := range 2 * maxGroups {
		for range 2 {
			d.membersElsewhere(verbs.GID{0xff, 0x0e, byte(i), byte(i >> 8)}, nil)
		}
		require.LessOrEqual(t, k.waiting, maxQueued)
	}
	require.True(t, d.routes.end())
	d.listener.wait()
	d.routes.begin()
	require.Empty(t, d.membersElsewhere(group, nil), "and those of then are the next look's")
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

// newDatagramQP makes a QP of type UD in RESET.
func newDatagramQP(t *testing.T, d *device) *datagramQP {
	t.Helper()
	p, err := d.AllocPD()
	require.NoError(t, err)
	c, err := d.CreateCQ(&verbs.CQAttr{CQE: 16}, nil)
	require.NoError(t, err)
	q, err := p.CreateQP(&verbs.QPInitAttr{Type: verbs.QPTypeUD, Cap: verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8}}, c, c, nil)
	require.NoError(t, err)
	return q.(*datagramQP)
}

// Who delivers a message cannot fail the QP at once: it may be the sender's own. What was wrong before a
// RESET fails nothing behind it.
func TestWhatWasWrongBeforeAResetDoesNotFailADatagramQP(t *testing.T) {
	d, err := openDevice(DeviceName)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	q := newDatagramQP(t, d)
	for _, s := range []verbs.QPState{verbs.QPStateInit, verbs.QPStateRTR} {
		require.NoError(t, q.Modify(&verbs.QPAttr{State: s}, verbs.QPAttrState))
	}
	_, err = q.PostRecv([]verbs.RecvWR{{SGL: []verbs.SGE{{Length: grhSize, LKey: 1}}}}) // of no region
	require.NoError(t, err)
	q.sendMu.Lock()
	d.deliver(&protocol.Datagram{To: protocol.Endpoint{GID: d.gid, QPN: q.num}}, nil)
	q.reset()
	q.setState(stateRTR)
	q.sendMu.Unlock()
	d.listener.handlers.Wait() // ends with who wanted to fail it
	require.Equal(t, stateRTR, q.state.Load())
}

// A peer that is admitted may send what it likes: it is hung up on, and the QP
// receives from others.
func TestPeersThatBreakTheRulesOfDatagramsAreHungUpOn(t *testing.T) {
	d, err := openDevice(DeviceName)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	q := newDatagramQP(t, d)
	for _, s := range []verbs.QPState{verbs.QPStateInit, verbs.QPStateRTR} {
		require.NoError(t, q.Modify(&verbs.QPAttr{State: s, QKey: 7}, verbs.QPAttrState|verbs.QPAttrQKey))
	}
	mr, err := q.pd.AllocMR(4096, verbs.AccessLocalWrite, verbs.MROptions{})
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
		n, err = q.recvCQ.Poll(wcs[:])
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
