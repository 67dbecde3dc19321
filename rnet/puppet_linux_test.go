package rnet

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/ring"
	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
	"github.com/seed-b9b531af/ramjet/verbs"
)

// puppet is a peer made by hand: it speaks the session protocol over a QP of
// its own, and does what a test tells it, however wrong.
type puppet struct {
	dev  *device
	pd   *verbs.PD
	cq   *verbs.CQ
	qp   *verbs.QP
	mr   *verbs.MR // its receive ring, and what it sends from
	out  *verbs.MR
	conn rcm.Conn
	peer hello
	tx   ring.Tx // where its next message goes
	// pace, if set, is the session at the other end: the puppet waits until
	// it has released its ring, as a decent peer does.
	pace *session
}

const (
	puppetRing    = 1 << 20
	puppetSlots   = 512
	puppetStreams = 1000
)

// newPuppet makes all of a puppet but the connection.
func newPuppet(t testing.TB) *puppet {
	t.Helper()
	p := new(puppet)
	var err error
	p.dev, err = acquireDevice("soft0")
	require.NoError(t, err)
	p.pd, err = p.dev.ctx.AllocPD()
	require.NoError(t, err)
	p.cq, err = p.dev.ctx.CreateCQ(verbs.CQAttr{CQE: 4 * puppetSlots}, nil)
	require.NoError(t, err)
	p.mr, err = p.pd.AllocMR(puppetRing, verbs.AccessLocalWrite|verbs.AccessRemoteWrite, verbs.MROptions{})
	require.NoError(t, err)
	p.out, err = p.pd.AllocMR(puppetRing, verbs.AccessLocalWrite, verbs.MROptions{})
	require.NoError(t, err)
	p.qp, err = p.pd.CreateQP(verbs.QPInitAttr{
		Type: verbs.QPTypeRC, SendCQ: p.cq, RecvCQ: p.cq,
		Cap: verbs.QPCap{MaxSendWR: puppetSlots, MaxRecvWR: 2 * puppetSlots, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: puppetRing},
	})
	require.NoError(t, err)
	return p
}

// hello returns what a decent puppet says.
func (p *puppet) hello() hello {
	return hello{
		minVersion: 2, maxVersion: 2,
		link:   link.Params{RingAddr: p.mr.Addr(), RingKey: p.mr.RKey(), RingSize: puppetRing, Slots: puppetSlots},
		window: 64 << 10, streams: puppetStreams, pid: 1, token: 1, sessionWindow: 1 << 20,
	}
}

func (p *puppet) param(hello []byte) rcm.ConnParam {
	return rcm.ConnParam{
		PrivateData: hello, Access: verbs.AccessRemoteWrite,
		Prepare: func(qp *verbs.QP) error {
			_, err := qp.PostRecv(make([]verbs.RecvWR, 2*puppetSlots))
			return err
		},
	}
}

// dial connects to a listener and says hello.
func (p *puppet) dial(address string, hello []byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), hangTime)
	defer cancel()
	route, err := rcm.Soft().Resolve(ctx, netip.MustParseAddrPort(address))
	if err != nil {
		return err
	}
	if p.conn, err = route.Connect(ctx, p.qp, p.param(hello)); err != nil {
		return err
	}
	return p.learn()
}

// accept waits for a dial to ln, and answers with hello.
func (p *puppet) accept(ln rcm.Listener, hello []byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), hangTime)
	defer cancel()
	req, err := ln.Accept(ctx)
	if err != nil {
		return err
	}
	if p.peer, err = parseHello(req.PrivateData()); err != nil {
		return err
	}
	if p.conn, err = req.Accept(ctx, p.qp, p.param(hello)); err != nil {
		return err
	}
	if err = p.tx.Init(p.peer.link.RingSize); err != nil {
		return err
	}
	// The dial waits for these.
	if err = p.send(addrsOf(0, min(puppetStreams, p.peer.streams))); err != nil {
		return err
	}
	if err = p.send(frame(framePing, 0, 0, nil)); err != nil {
		return err
	}
	return p.write(0, nil, creditImm(0, puppetRing, puppetSlots))
}

func (p *puppet) learn() (err error) {
	if p.peer, err = parseHello(p.conn.PrivateData()); err != nil {
		return err
	}
	return p.tx.Init(p.peer.link.RingSize)
}

// close ends the puppet, in which state ever it is.
func (p *puppet) close() {
	if p.conn != nil {
		p.conn.Disconnect()
	}
	p.qp.Close()
	p.cq.Close()
	p.mr.Close()
	p.out.Close()
	p.pd.Close()
	p.dev.release()
}

// dialPuppet returns a connected and well-behaved puppet that ends with the
// test.
func dialPuppet(t testing.TB, address string) *puppet {
	t.Helper()
	p := newPuppet(t)
	t.Cleanup(p.close)
	h := p.hello()
	require.NoError(t, p.dial(address, h.marshal()))
	return p
}

// send writes a message to where the peer expects it.
func (p *puppet) send(msg []byte) error { return p.write(p.reserve(len(msg)), msg, immFrames) }

// reserve returns where the next message of n bytes goes. Without a pace it
// pretends that all was released.
func (p *puppet) reserve(n int) uint32 {
	for {
		if off, ok := p.tx.Reserve(n); ok {
			return off
		}
		if p.pace == nil {
			p.tx.Credit(p.tx.Sent())
		} else {
			p.tx.Credit(p.pace.link.Stats().Released)
			runtime.Gosched()
		}
	}
}

// write writes a message anywhere, with any immediate.
func (p *puppet) write(off uint32, msg []byte, imm uint32) error {
	return p.post(verbs.SendWR{
		Opcode: verbs.OpWriteWithImm, Flags: verbs.SendInline, Inline: [][]byte{msg}, Imm: imm,
		RemoteAddr: p.peer.link.RingAddr + uint64(off), RKey: p.peer.link.RingKey,
	})
}

func (p *puppet) post(wr verbs.SendWR) error {
	for end := time.Now().Add(hangTime); ; {
		_, err := p.qp.PostSend([]verbs.SendWR{wr})
		if !errors.Is(err, verbs.ErrQueueFull) {
			return err
		}
		p.poll()
		if time.Now().After(end) {
			return err
		}
	}
}

// poll takes completions and posts receives again, so that the peer can write
// on and on.
func (p *puppet) poll() []verbs.WC {
	var wcs [64]verbs.WC
	n, _ := p.cq.Poll(wcs[:])
	received := 0
	for _, wc := range wcs[:n] {
		if wc.Opcode == verbs.WCRecvWriteWithImm && wc.Status == verbs.WCSuccess {
			received++
		}
	}
	p.qp.PostRecv(make([]verbs.RecvWR, received))
	return wcs[:n]
}

// open opens a stream.
func (p *puppet) open(stream uint32) error { return p.send(frame(frameOpen, stream, 0, nil)) }

// gone reports whether the peer has ended the session.
func (p *puppet) gone() bool {
	p.poll()
	select {
	case <-p.conn.Disconnected():
		return true
	default:
		return false
	}
}

// addrsOf gives addresses to slots.
func addrsOf(first, count uint32) []byte {
	var b [addrsLen]byte
	r := slotAddrs{slot: first, count: count, addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(10_000+first))}
	r.put(&b)
	return frame(frameAddrs, 0, 0, b[:])
}

func windowFrame(stream uint32, limit uint64) []byte {
	return frame(frameWindow, stream, 0, binary.LittleEndian.AppendUint64(nil, limit))
}
