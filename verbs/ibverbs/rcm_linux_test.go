//go:build amd64 || arm64

package ibverbs_test

import (
	"bytes"
	"context"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/freeport"
	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/kernelcm"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/ibverbs"
)

// The kernel's connection manager knows nothing of the library: package rcm applies what it says to QPs of
// any provider. The tests of rcm itself run over our driver.

// managed is a fabric on the device, with an address of it at which nobody listens.
func managed(t *testing.T) (fabric rcm.Fabric, addr netip.AddrPort) {
	t.Helper()
	device := os.Getenv("RAMJET_DEVICES")
	if hosts[device] == "" {
		t.Skip("RAMJET_DEVICES names no device of which the address is known")
	}
	free, err := freeport.Address(hosts[device])
	require.NoError(t, err)
	return kernelcm.New(kernelcm.Config{Device: device}), netip.MustParseAddrPort(free)
}

// end is a QP in RESET with a device of its own, and memory: half for what it receives, half for what it sends.
type end struct {
	t  *testing.T
	cq *verbs.CQ
	mr *verbs.MR
	qp *verbs.QP
}

const half = 512

func newEnd(t *testing.T, service verbs.QPType) *end {
	t.Helper()
	ctx, err := verbs.Open(os.Getenv("RAMJET_DEVICES"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ctx.Close()) })
	require.Equal(t, ibverbs.ProviderName, ctx.Attr().Provider, "who serves the device")
	pd, err := ctx.AllocPD()
	require.NoError(t, err)
	e := &end{t: t}
	e.cq, err = ctx.CreateCQ(verbs.CQAttr{CQE: 16}, nil)
	require.NoError(t, err)
	e.mr, err = pd.AllocMR(2*half, verbs.AccessLocalWrite|verbs.AccessRemoteWrite, verbs.MROptions{})
	require.NoError(t, err)
	e.qp, err = pd.CreateQP(verbs.QPInitAttr{
		Type: service, SendCQ: e.cq, RecvCQ: e.cq, Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	require.NoError(t, err)
	return e
}

const received, sent = 1, 2 // ids of requests

// receive posts a receive, as Prepare.
func (e *end) receive(*verbs.QP) error {
	_, err := e.qp.PostRecv([]verbs.RecvWR{{ID: received, SGL: []verbs.SGE{e.mr.SGE(0, half)}}})
	return err
}

// send posts a request that carries a message. What else it is says wr.
func (e *end) send(message string, wr verbs.SendWR) {
	e.t.Helper()
	copy(e.mr.Bytes()[half:], message)
	wr.ID, wr.Flags, wr.SGL = sent, verbs.SendSignaled, []verbs.SGE{e.mr.SGE(half, len(message))}
	_, err := e.qp.PostSend([]verbs.SendWR{wr})
	require.NoError(e.t, err)
}

// next waits for the completion of the request with an id, the only one that is under way.
func (e *end) next(id uint64, status verbs.WCStatus) verbs.WC {
	e.t.Helper()
	var wc [1]verbs.WC
	for deadline := time.Now().Add(20 * time.Second); ; {
		n, err := e.cq.Poll(wc[:])
		require.NoError(e.t, err)
		if n > 0 {
			break
		}
		require.True(e.t, time.Now().Before(deadline), "nothing completes")
	}
	require.Equal(e.t, id, wc[0].ID)
	require.Equal(e.t, status, wc[0].Status)
	return wc[0]
}

// carries requires private data, which the kernel pads with zeros.
func carries(t *testing.T, data []byte, want string) {
	t.Helper()
	require.Equal(t, want, string(bytes.TrimRight(data, "\x00")))
}

func TestTheKernelConnectsQPs(t *testing.T) {
	fabric, addr := managed(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	near, far := newEnd(t, verbs.QPTypeRC), newEnd(t, verbs.QPTypeRC)
	ln, err := fabric.Listen(addr, rcm.ListenConfig{})
	require.NoError(t, err)
	defer ln.Close()
	type answer struct {
		request rcm.Request
		conn    rcm.Conn
		err     error
	}
	answered := make(chan answer, 1)
	go func() { // ends with ctx
		var a answer
		if a.request, a.err = ln.Accept(ctx); a.err == nil {
			a.conn, a.err = a.request.Accept(ctx, far.qp, rcm.ConnParam{PrivateData: []byte("welcome"), Prepare: far.receive})
		}
		answered <- a
	}()
	route, err := fabric.Resolve(ctx, addr)
	require.NoError(t, err)
	require.Equal(t, os.Getenv("RAMJET_DEVICES"), route.Device())
	conn, err := route.Connect(ctx, near.qp, rcm.ConnParam{PrivateData: []byte("hello"), Prepare: near.receive})
	require.NoError(t, err)
	defer conn.Disconnect()
	a := <-answered // ends with ctx
	require.NoError(t, a.err)
	defer a.conn.Disconnect()
	carries(t, a.request.PrivateData(), "hello")
	carries(t, conn.PrivateData(), "welcome")

	near.send("how are you?", verbs.SendWR{Opcode: verbs.OpSend})
	near.next(sent, verbs.WCSuccess)
	n := far.next(received, verbs.WCSuccess).ByteLen
	require.Equal(t, "how are you?", string(far.mr.Bytes()[:n]))
	require.NoError(t, far.receive(far.qp))
	far.send("fine", verbs.SendWR{Opcode: verbs.OpWrite, RemoteAddr: near.mr.Addr(), RKey: near.mr.RKey()})
	far.next(sent, verbs.WCSuccess)
	require.Equal(t, "fine", string(near.mr.Bytes()[:4]))

	require.NoError(t, conn.Disconnect())
	near.next(received, verbs.WCWRFlushErr)
	select {
	case <-a.conn.Disconnected():
	case <-ctx.Done():
		t.Fatal("the peer does not learn of the end")
	}
	require.ErrorIs(t, a.conn.Err(), rcm.ErrDisconnected)
	require.NoError(t, a.conn.Disconnect())
	far.next(received, verbs.WCWRFlushErr)
}

func TestTheKernelFindsAQPForDatagrams(t *testing.T) {
	fabric, addr := managed(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	near, far := newEnd(t, verbs.QPTypeUD), newEnd(t, verbs.QPTypeUD)
	ln, err := fabric.ListenDatagram(addr, rcm.ListenConfig{})
	require.NoError(t, err)
	defer ln.Close()
	answered := make(chan error, 1)
	go func() { // ends with ctx
		request, err := ln.Accept(ctx)
		if err == nil {
			err = request.Accept(far.qp, rcm.DatagramParam{PrivateData: []byte("welcome"), Prepare: far.receive})
		}
		answered <- err
	}()
	route, err := fabric.ResolveDatagram(ctx, addr)
	require.NoError(t, err)
	to, err := route.Lookup(ctx, near.qp, rcm.DatagramParam{PrivateData: []byte("hello"), Prepare: near.receive})
	require.NoError(t, err)
	require.NoError(t, <-answered) // ends with ctx
	carries(t, to.PrivateData, "welcome")
	require.Equal(t, far.qp.Num(), to.QPN)

	ah, err := near.qp.PD().CreateAH(to.AV)
	require.NoError(t, err)
	near.send("how are you?", verbs.SendWR{Opcode: verbs.OpSend, Datagram: &verbs.Datagram{AH: ah, QPN: to.QPN, QKey: to.QKey}})
	near.next(sent, verbs.WCSuccess)
	wc := far.next(received, verbs.WCSuccess)
	require.Equal(t, "how are you?", string(far.mr.Bytes()[verbs.GRHSize:wc.ByteLen]))
	back, err := far.qp.PD().CreateReplyAH(&wc, far.mr.Bytes()[:half], route.Port())
	require.NoError(t, err)
	far.send("fine", verbs.SendWR{Opcode: verbs.OpSend, Datagram: &verbs.Datagram{AH: back, QPN: wc.SrcQPN, QKey: rcm.DatagramQKey}})
	far.next(sent, verbs.WCSuccess)
	wc = near.next(received, verbs.WCSuccess)
	require.Equal(t, "fine", string(near.mr.Bytes()[verbs.GRHSize:wc.ByteLen]))
}

func TestTheKernelJoinsAGroup(t *testing.T) {
	fabric, _ := managed(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	near, far := newEnd(t, verbs.QPTypeUD), newEnd(t, verbs.QPTypeUD)
	join := func(e *end, prepare func(*verbs.QP) error) rcm.Membership {
		t.Helper()
		route, err := fabric.ResolveGroup(ctx, netip.MustParseAddr("239.1.2.3"))
		require.NoError(t, err)
		m, err := route.Join(ctx, e.qp, rcm.JoinParam{Prepare: prepare})
		require.NoError(t, err)
		return m
	}
	sender, member := join(near, nil), join(far, far.receive) // some devices send to the sender too: it has no room
	to := sender.Destination()
	ah, err := near.qp.PD().CreateAH(to.AV)
	require.NoError(t, err)
	near.send("to all", verbs.SendWR{Opcode: verbs.OpSend, Datagram: &verbs.Datagram{AH: ah, QPN: to.QPN, QKey: to.QKey}})
	wc := far.next(received, verbs.WCSuccess)
	require.Equal(t, "to all", string(far.mr.Bytes()[verbs.GRHSize:wc.ByteLen]))
	require.NoError(t, member.Leave())
	require.NoError(t, sender.Leave())
}
