//go:build linux

package soft_test

import (
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/leak"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft"
	"github.com/stretchr/testify/require"
)

const (
	grhSize  = 40
	testQKey = 0x1234
	groupQPN = 1<<24 - 1
)

// useDatagrams replaces the QP by one of service UD in RTS.
func (e *end) useDatagrams() error {
	if err := e.qp.Close(); err != nil {
		return err
	}
	var err error
	e.qp, err = e.pd.CreateQP(verbs.QPInitAttr{Type: verbs.QPTypeUD, SendCQ: e.send, RecvCQ: e.recv, Cap: usual.cap})
	return errors.Join(err,
		e.qp.Modify(verbs.QPAttr{State: verbs.QPStateInit, Port: 1, QKey: testQKey},
			verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrQKey),
		e.qp.Modify(verbs.QPAttr{State: verbs.QPStateRTR}, verbs.QPAttrState),
		e.qp.Modify(verbs.QPAttr{State: verbs.QPStateRTS}, verbs.QPAttrState|verbs.QPAttrSQPSN))
}

func newDatagramEnd(t testing.TB) *end {
	t.Helper()
	e := newEnd(t, usual)
	require.NoError(t, e.useDatagrams())
	return e
}

// datagram makes a request to send text.
func (e *end) datagram(gid verbs.GID, qpn uint32, text string) (verbs.SendWR, error) {
	ah, err := e.pd.CreateAH(verbs.AddressVector{DGID: gid, IsGlobal: true, Port: 1, HopLimit: 9, TrafficClass: 0xab, FlowLabel: 0x12345})
	return verbs.SendWR{
		Opcode: verbs.OpSend, Flags: verbs.SendInline, Inline: [][]byte{[]byte(text)},
		Datagram: &verbs.Datagram{AH: ah, QPN: qpn, QKey: testQKey},
	}, err
}

func (e *end) say(t testing.TB, gid verbs.GID, qpn uint32, text string) verbs.WCStatus {
	t.Helper()
	wr, err := e.datagram(gid, qpn, text)
	require.NoError(t, err)
	return e.post(t, wr)
}

// listen posts a receive at an offset of the region.
func (e *end) listen(at, n int) error {
	_, err := e.qp.PostRecv([]verbs.RecvWR{{SGL: []verbs.SGE{e.mr.SGE(at, grhSize+n)}}})
	return err
}

func gidOf(e *end) verbs.GID {
	a, err := e.address()
	if err != nil {
		panic(err)
	}
	return a.GID
}

// The GRH is an IPv6 header (InfiniBand Architecture Specification 8.3).
func TestADatagramBeginsWithItsGRH(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		a, b := newDatagramEnd(t), newDatagramEnd(t)
		require.NoError(t, b.listen(0, 10))
		require.Equal(t, verbs.WCSuccess, a.say(t, gidOf(b), b.qp.Num(), "text"))
		wc := poll(t, b.recv, 1)[0]
		require.EqualValues(t, grhSize+4, wc.ByteLen)
		from, to := gidOf(a), gidOf(b)
		want := append([]byte{0x6a, 0xb1, 0x23, 0x45, 0, 4, 0x1b, 9}, from[:]...)
		want = append(append(want, to[:]...), "text"...)
		require.Equal(t, want, b.mr.Bytes()[:grhSize+4])
	})
}

// What does not fit, and what comes where nobody receives, is lost and harms nobody.
func TestDatagramsThatNobodyTakesAreLost(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		a, b := newDatagramEnd(t), newDatagramEnd(t)
		require.Equal(t, verbs.WCSuccess, a.say(t, gidOf(b), b.qp.Num()+1, "no QP"))
		require.Equal(t, verbs.WCSuccess, a.say(t, verbs.GID{5}, 7, "no device"))
		require.NoError(t, b.listen(0, 4))
		require.Equal(t, verbs.WCSuccess, a.say(t, gidOf(b), b.qp.Num(), "longer than the receive"))
		require.Equal(t, verbs.WCSuccess, a.say(t, gidOf(b), b.qp.Num(), "fits"))
		require.EqualValues(t, grhSize+4, poll(t, b.recv, 1)[0].ByteLen)
		require.Equal(t, verbs.QPStateRTS, state(t, b))
		require.NoError(t, b.qp.Close())
		for range 100 {
			require.Equal(t, verbs.WCSuccess, a.say(t, gidOf(b), 7, "gone"))
		}
	})
}

func TestSendQueueErrorOfADatagramQP(t *testing.T) {
	a, b := newDatagramEnd(t), newDatagramEnd(t)
	back := func() {
		require.Equal(t, verbs.QPStateSQE, state(t, a))
		require.NoError(t, a.qp.Modify(verbs.QPAttr{State: verbs.QPStateRTS}, verbs.QPAttrState))
	}
	require.Equal(t, verbs.WCLocLenErr, a.say(t, gidOf(b), b.qp.Num(), strings.Repeat("x", 4097)))
	require.Equal(t, verbs.WCWRFlushErr, a.say(t, gidOf(b), b.qp.Num(), "in SQE"))
	back()
	wr, err := a.datagram(gidOf(b), b.qp.Num(), "")
	require.NoError(t, err)
	wr.Flags, wr.SGL = 0, []verbs.SGE{{Addr: 1, Length: 1, LKey: 2}}
	require.Equal(t, verbs.WCLocProtErr, a.post(t, wr))
	back()
	wr, err = b.datagram(gidOf(b), b.qp.Num(), "handle of another PD")
	require.NoError(t, err)
	pd, err := a.ctx.AllocPD()
	require.NoError(t, err)
	wr.Datagram.AH, err = pd.CreateAH(verbs.AddressVector{DGID: gidOf(b), IsGlobal: true, Port: 1})
	require.NoError(t, err)
	require.Equal(t, verbs.WCLocQPOpErr, a.post(t, wr))
	back()
	require.NoError(t, b.listen(0, 10))
	require.Equal(t, verbs.WCSuccess, a.say(t, gidOf(b), b.qp.Num(), "again"))
	poll(t, b.recv, 1)

	// What waits behind the request is flushed too.
	require.NoError(t, a.qp.Modify(verbs.QPAttr{State: verbs.QPStateSQD}, verbs.QPAttrState))
	wr, err = a.datagram(gidOf(b), b.qp.Num(), strings.Repeat("x", 4097))
	require.NoError(t, err)
	_, err = a.qp.PostSend([]verbs.SendWR{wr, wr})
	require.NoError(t, err)
	require.NoError(t, a.qp.Modify(verbs.QPAttr{State: verbs.QPStateRTS}, verbs.QPAttrState))
	wcs := poll(t, a.send, 2)
	require.Equal(t, []verbs.WCStatus{verbs.WCLocLenErr, verbs.WCWRFlushErr}, []verbs.WCStatus{wcs[0].Status, wcs[1].Status})
	back()
}

// In SQD requests wait; in ERR all that is posted is flushed; RESET drops all.
func TestStatesOfADatagramQP(t *testing.T) {
	a, b := newDatagramEnd(t), newDatagramEnd(t)
	require.NoError(t, a.qp.Modify(verbs.QPAttr{State: verbs.QPStateSQD, EnSQDAsyncNotify: true}, verbs.QPAttrState|verbs.QPAttrEnSQDNotify))
	ev, err := a.ctx.NextEvent()
	require.NoError(t, err)
	require.Equal(t, verbs.EventSQDrained, ev.Type)
	require.NoError(t, b.listen(0, 10))
	wr, err := a.datagram(gidOf(b), b.qp.Num(), "held")
	require.NoError(t, err)
	wr.Flags |= verbs.SendSignaled
	_, err = a.qp.PostSend([]verbs.SendWR{wr, wr})
	require.NoError(t, err)
	wr.Datagram.QPN = 0 // what PostSend has taken is a copy
	time.Sleep(time.Millisecond)
	n, err := a.send.Poll(make([]verbs.WC, 1))
	require.NoError(t, err)
	require.Zero(t, n)
	require.NoError(t, a.qp.Modify(verbs.QPAttr{State: verbs.QPStateRTS}, verbs.QPAttrState))
	poll(t, a.send, 2)
	poll(t, b.recv, 1)

	require.NoError(t, b.listen(0, 10))
	require.NoError(t, b.qp.Fail())
	require.NoError(t, b.listen(0, 10))
	for _, wc := range poll(t, b.recv, 2) {
		require.Equal(t, verbs.WCWRFlushErr, wc.Status)
	}
	require.Equal(t, verbs.WCWRFlushErr, b.say(t, gidOf(a), a.qp.Num(), "in ERR"))
	require.NoError(t, b.qp.Modify(verbs.QPAttr{State: verbs.QPStateReset}, verbs.QPAttrState))
	require.ErrorIs(t, b.listen(0, 10), verbs.ErrInvalid)
}

// A receive that is no good takes its own QP to ERR, also that of who sends to itself.
func TestADatagramToItselfIntoABadReceive(t *testing.T) {
	a := newDatagramEnd(t)
	_, err := a.qp.PostRecv([]verbs.RecvWR{{SGL: []verbs.SGE{{Addr: 1, Length: 100, LKey: 2}}}})
	require.NoError(t, err)
	require.Equal(t, verbs.WCSuccess, a.say(t, gidOf(a), a.qp.Num(), "me"))
	require.Equal(t, verbs.WCLocProtErr, poll(t, a.recv, 1)[0].Status)
	require.Eventually(t, func() bool { return state(t, a) == verbs.QPStateErr }, 10*time.Second, time.Millisecond)
}

func TestGroupsEndWithTheirMembers(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		group := verbs.GID{0xff, 0x0e, 9}
		a, b := newDatagramEnd(t), newDatagramEnd(t)
		require.NoError(t, b.qp.AttachMulticast(group, 0))
		require.NoError(t, b.qp.AttachMulticast(group, 0), "it is one already")
		require.NoError(t, b.listen(0, 10))
		require.Equal(t, verbs.WCSuccess, a.say(t, group, groupQPN, "all"))
		poll(t, b.recv, 1)
		require.NoError(t, b.listen(0, 10))
		require.Equal(t, verbs.WCSuccess, a.say(t, group, b.qp.Num(), "a QP of a group"))
		require.NoError(t, b.qp.Close())
		require.NoError(t, newDatagramEnd(t).qp.AttachMulticast(group, 0), "nobody has it")
		require.Equal(t, verbs.WCSuccess, a.say(t, group, groupQPN, "another"))
	})
}

// What looks for the members of a group leaves nothing behind, however early the
// device closes.
func TestASearchForMembersEndsWithTheDevice(t *testing.T) {
	soft.CheckLeaks(t)
	soft.PairAsStrangers(t)
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // it would close what is left
	group := verbs.GID{0xff, 0x0e, 11}
	member := newDatagramEnd(t)
	require.NoError(t, member.qp.AttachMulticast(group, 0))
	before := leak.Descriptors()
	for range 60 {
		e, err := makeEnd(usual)
		require.NoError(t, err)
		require.NoError(t, e.useDatagrams())
		require.Equal(t, verbs.WCSuccess, e.say(t, group, groupQPN, "all"))
		require.NoError(t, e.close())
	}
	require.NoError(t, member.qp.Close()) // hangs up
	require.Eventually(t, func() bool { return leak.Descriptors() <= before }, 10*time.Second, time.Millisecond)
}

// datagramPeerVariable holds GID and number of the parent's QP.
const datagramPeerVariable = "SOFT_TEST_DATAGRAM_PEER"

var childsGroup = verbs.GID{0xff, 0x0e, 42}

func init() { alone["datagram"] = datagramChild }

// datagramChild joins a group, says so to the parent, and answers what comes to the
// group.
func datagramChild() error {
	e, err := makeEnd(usual)
	if err != nil {
		return err
	}
	if err := errors.Join(e.useDatagrams(), e.qp.AttachMulticast(childsGroup, 0), e.listen(0, 100)); err != nil {
		return err
	}
	var gid verbs.GID
	name, num, _ := strings.Cut(os.Getenv(datagramPeerVariable), " ")
	if _, err := hex.Decode(gid[:], []byte(name)); err != nil {
		return err
	}
	qpn, err := strconv.ParseUint(num, 10, 32)
	if err != nil {
		return err
	}
	say := func(text string) error {
		wr, err := e.datagram(gid, uint32(qpn), text)
		if err != nil {
			return err
		}
		_, err = e.qp.PostSend([]verbs.SendWR{wr})
		return err
	}
	if err := say("here"); err != nil {
		return err
	}
	wcs := make([]verbs.WC, 1)
	for n := 0; n == 0; time.Sleep(100 * time.Microsecond) {
		if n, err = e.recv.Poll(wcs); err != nil {
			return err
		}
	}
	return errors.Join(say(string(e.mr.Bytes()[grhSize:wcs[0].ByteLen])), e.close())
}

func TestDatagramsGoBetweenProcesses(t *testing.T) {
	soft.CheckLeaks(t)
	e := newDatagramEnd(t)
	require.NoError(t, e.listen(0, 100))
	cmd := exec.Command(os.Args[0])
	gid := gidOf(e)
	cmd.Env = append(os.Environ(), roleVariable+"=datagram", fmt.Sprintf("%s=%x %d", datagramPeerVariable, gid[:], e.qp.Num()))
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	defer cmd.Process.Kill()
	wc := poll(t, e.recv, 1)[0]
	require.Equal(t, "here", string(e.mr.Bytes()[grhSize:wc.ByteLen]))
	require.NoError(t, e.listen(0, 100))
	require.Equal(t, verbs.WCSuccess, e.say(t, childsGroup, groupQPN, "to the group"))
	wc = poll(t, e.recv, 1)[0]
	require.Equal(t, "to the group", string(e.mr.Bytes()[grhSize:wc.ByteLen]))
	require.NoError(t, cmd.Wait())
}

// A QP that is closed takes nothing back.
func TestWhatWasSentBeforeCloseArrives(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		a, b := newDatagramEnd(t), newDatagramEnd(t)
		require.NoError(t, b.listen(0, 10))
		require.NoError(t, b.listen(0, 10))
		require.Equal(t, verbs.WCSuccess, a.say(t, gidOf(b), b.qp.Num(), "first"))
		poll(t, b.recv, 1)
		require.Equal(t, verbs.WCSuccess, a.say(t, gidOf(b), b.qp.Num(), "last"))
		require.NoError(t, a.qp.Close())
		require.EqualValues(t, grhSize+4, poll(t, b.recv, 1)[0].ByteLen)
	})
}
