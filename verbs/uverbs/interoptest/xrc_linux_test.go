package interoptest

import (
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/pingpong"
)

// xsrqEnd is one end of ibv_xsrq_pingpong with one client: a target and an initiator, and
// an SRQ of the domain for one message at a time. The server sends first, and each end
// answers what it receives.
type xsrqEnd struct {
	path      pingpong.Path
	ch        *verbs.CompChannel
	recv      *verbs.CQ
	target    *verbs.QP
	initiator *verbs.QP
	srq       *verbs.SRQ
	mr        *verbs.MR // a message to send, and behind it one to receive
	size      int
	rounds    int
	peer      xsrqAddress
}

type xsrqAddress struct {
	lid                     uint16
	target, initiator, srqn uint32
	psn                     uint32
	gid                     verbs.GID
}

const (
	xsrqPSN     = 0x4321
	xsrqMessage = len("0000:000000:000000:000000:000000:00000000000000000000000000000000") + 1
)

func newXSRQEnd(t *testing.T, ctx *verbs.Context, path pingpong.Path, size, rounds int) *xsrqEnd {
	t.Helper()
	e := &xsrqEnd{path: path, size: size, rounds: rounds}
	pd, err := ctx.AllocPD()
	require.NoError(t, err)
	e.mr, err = pd.AllocMR(2*size, verbs.AccessLocalWrite, verbs.MROptions{})
	require.NoError(t, err)
	pingpong.Fill(e.mr.Bytes()[:size], 1)
	e.ch, err = ctx.CreateCompChannel()
	require.NoError(t, err)
	e.recv, err = ctx.CreateCQ(verbs.CQAttr{CQE: 4}, e.ch)
	require.NoError(t, err)
	send, err := ctx.CreateCQ(verbs.CQAttr{CQE: rounds}, nil)
	require.NoError(t, err)
	domain, err := ctx.OpenXRCDomain(nil)
	require.NoError(t, err)
	e.srq, err = domain.CreateSRQ(pd, e.recv, verbs.SRQAttr{MaxWR: 1, MaxSGE: 1})
	require.NoError(t, err)
	e.target, err = domain.CreateQP()
	require.NoError(t, err)
	e.initiator, err = pd.CreateQP(verbs.QPInitAttr{
		Type: verbs.QPTypeXRCInitiator, SendCQ: send, Cap: verbs.QPCap{MaxSendWR: rounds, MaxSendSGE: 1},
	})
	require.NoError(t, err)
	for _, qp := range []*verbs.QP{e.target, e.initiator} {
		require.NoError(t, qp.Modify(verbs.QPAttr{State: verbs.QPStateInit, Port: 1},
			verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess))
	}
	e.receive(t)
	return e
}

func (e *xsrqEnd) receive(t *testing.T) {
	t.Helper()
	n, err := e.srq.PostRecv([]verbs.RecvWR{{SGL: []verbs.SGE{e.mr.SGE(e.size, e.size)}}})
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

func (e *xsrqEnd) send(t *testing.T) {
	t.Helper()
	_, err := e.initiator.PostSend([]verbs.SendWR{{
		Opcode: verbs.OpSend, Flags: verbs.SendSignaled, RemoteSRQ: e.peer.srqn, SGL: []verbs.SGE{e.mr.SGE(0, e.size)},
	}})
	require.NoError(t, err)
}

func (e *xsrqEnd) tell(t *testing.T, c net.Conn) {
	t.Helper()
	gid := e.path.GID.GID
	_, err := fmt.Fprintf(c, "%04x:%06x:%06x:%06x:%06x:%s\x00", e.path.LID, e.target.Num(), e.initiator.Num(), xsrqPSN, e.srq.Num(), hex.EncodeToString(gid[:]))
	require.NoError(t, err)
}

func (e *xsrqEnd) learn(t *testing.T, c net.Conn) {
	t.Helper()
	b := make([]byte, xsrqMessage)
	_, err := io.ReadFull(c, b)
	require.NoError(t, err)
	p, gid := &e.peer, ""
	_, err = fmt.Sscanf(string(b[:len(b)-1]), "%x:%x:%x:%x:%x:%32s", &p.lid, &p.target, &p.initiator, &p.psn, &p.srqn, &gid)
	require.NoError(t, err)
	_, err = hex.Decode(p.gid[:], []byte(gid))
	require.NoError(t, err)
}

// connect takes both QPs to RTS: what one of them has no use for is ignored.
func (e *xsrqEnd) connect(t *testing.T) {
	t.Helper()
	for qp, peer := range map[*verbs.QP]uint32{e.target: e.peer.initiator, e.initiator: e.peer.target} {
		rtr := verbs.QPAttr{PathMTU: verbs.MTU1024, DestQPN: peer, RQPSN: e.peer.psn, MinRNRTimer: 12, AV: e.path.To(e.peer.lid, e.peer.gid)}
		rts := verbs.QPAttr{Timeout: 14, RetryCount: 7, RNRRetry: 7, SQPSN: xsrqPSN}
		require.NoError(t, pingpong.ToRTS(qp, verbs.QPTypeRC, rtr, rts))
	}
}

// play sends and receives so many messages.
func (e *xsrqEnd) play(t *testing.T, first bool) {
	t.Helper()
	sent, wcs := 0, make([]verbs.WC, 1)
	if first {
		e.send(t)
		sent++
	}
	for got := 0; got < e.rounds; {
		require.NoError(t, e.recv.Arm(false))
		n, err := e.recv.Poll(wcs)
		require.NoError(t, err)
		if n == 0 {
			require.NoError(t, e.ch.Wait(time.Now().Add(time.Minute)), "%d of %d messages came", got, e.rounds)
			continue
		}
		require.NoError(t, wcs[0].Err())
		require.Equal(t, e.target.Num(), wcs[0].QPN)
		require.EqualValues(t, e.size, wcs[0].ByteLen)
		got++
		e.receive(t)
		if sent < e.rounds {
			e.send(t)
			sent++
		}
	}
}

func TestPingPongOfXRCWithTheCProgram(t *testing.T) {
	device := cDevice(t)
	for _, of := range []struct {
		name string
		path func(*verbs.Context) (pingpong.Path, error)
		size int
		args []string
	}{
		{"polling", pingpong.PathOf, 64, nil}, {"events", pingpong.PathOf, 5000, []string{"-e"}}, {"by GID", pingpong.PathByGID, 300, nil},
	} {
		const rounds = 100
		prepare := func(t *testing.T) (e *xsrqEnd, args []string) {
			ctx, err := verbs.Open(device)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, ctx.Close()) })
			if !ctx.Attr().Caps.Has(verbs.CapXRC) {
				t.Skip("the device has no XRC domains")
			}
			path, err := of.path(ctx)
			require.NoError(t, err)
			e = newXSRQEnd(t, ctx, path, of.size, rounds)
			args = append(gidFlag(path, "-g"), "-d", device, "-n", strconv.Itoa(rounds), "-s", strconv.Itoa(of.size))
			return e, append(args, of.args...)
		}
		const end = "END\x00"
		t.Run(of.name+", C serves", func(t *testing.T) {
			e, args := prepare(t)
			number, port := freePort(t)
			wait := program(t, "ibv_xsrq_pingpong", append(args, "-p", port)...)
			waitForListener(t, number)
			c, err := net.DialTimeout("tcp", "127.0.0.1:"+port, time.Minute)
			require.NoError(t, err)
			defer c.Close()
			require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
			e.tell(t, c)
			e.learn(t, c)
			e.connect(t)
			e.play(t, false)
			_, err = io.WriteString(c, end)
			require.NoError(t, err)
			_, err = io.ReadFull(c, make([]byte, len(end)))
			require.NoError(t, err)
			out, err := wait()
			require.NoError(t, err)
			require.Contains(t, out, "success")
		})
		t.Run(of.name+", C dials", func(t *testing.T) {
			e, args := prepare(t)
			ln, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
			require.NoError(t, err)
			defer ln.Close()
			_, port, err := net.SplitHostPort(ln.Addr().String())
			require.NoError(t, err)
			wait := program(t, "ibv_xsrq_pingpong", append(args, "-p", port, "127.0.0.1")...)
			require.NoError(t, ln.SetDeadline(time.Now().Add(time.Minute)))
			c, err := ln.Accept() // ends with the program, or after a minute
			require.NoError(t, err)
			defer c.Close()
			require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
			e.learn(t, c)
			e.connect(t)
			e.tell(t, c)
			e.play(t, true)
			_, err = io.ReadFull(c, make([]byte, len(end)))
			require.NoError(t, err)
			_, err = io.WriteString(c, end)
			require.NoError(t, err)
			out, err := wait()
			require.NoError(t, err)
			require.Contains(t, out, "success")
		})
	}
}
