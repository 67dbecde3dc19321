package rnet

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/softcm"
	"github.com/seed-b9b531af/ramjet/ring"
	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
	"github.com/seed-b9b531af/ramjet/rnet/internal/mux"
	"github.com/seed-b9b531af/ramjet/verbs"
)

// rawPeer is a peer made by hand: it speaks the session protocol over a QP of
// its own, and does what a test tells it, however wrong.
type rawPeer struct {
	dev  *device
	pd   *verbs.PD
	cq   *verbs.CQ
	qp   *verbs.QP
	mr   *verbs.MR // its receive ring, and what it sends from
	out  *verbs.MR
	by   rcm.Fabric
	conn rcm.Conn
	peer mux.Hello
	tx   ring.Tx // where its next message goes
	// pace, if set, is the session at the other end: the raw peer waits until
	// it has released its ring, as a decent peer does.
	pace *mux.Mux
}

const (
	rawPeerRing    = 1 << 20
	rawPeerSlots   = 512
	rawPeerStreams = 1000
)

// newRawPeer makes all of a raw peer but the connection.
func newRawPeer(t testing.TB) *rawPeer {
	t.Helper()
	p, err := rawPeerBy(softcm.New(softcm.Config{}))
	require.NoError(t, err)
	return p
}

// rawPeerBy is newRawPeer for a process without tests, and a fabric of the software HCA.
func rawPeerBy(fabric rcm.Fabric) (p *rawPeer, err error) {
	p = &rawPeer{by: fabric}
	if p.dev, err = acquireDevice("soft0"); err != nil {
		return nil, err
	}
	if p.pd, err = p.dev.ctx.AllocPD(); err != nil {
		return nil, err
	}
	if p.cq, err = p.dev.ctx.CreateCQ(verbs.CQAttr{CQE: 4 * rawPeerSlots}, nil); err != nil {
		return nil, err
	}
	if p.mr, err = p.pd.AllocMR(rawPeerRing, verbs.AccessLocalWrite|verbs.AccessRemoteWrite, verbs.MROptions{}); err != nil {
		return nil, err
	}
	if p.out, err = p.pd.AllocMR(rawPeerRing, verbs.AccessLocalWrite, verbs.MROptions{}); err != nil {
		return nil, err
	}
	p.qp, err = p.pd.CreateQP(verbs.QPInitAttr{
		Type: verbs.QPTypeRC, SendCQ: p.cq, RecvCQ: p.cq,
		Cap: verbs.QPCap{MaxSendWR: rawPeerSlots, MaxRecvWR: 2 * rawPeerSlots, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: rawPeerRing},
	})
	return p, err
}

// hello returns what a decent raw peer says.
func (p *rawPeer) hello() mux.Hello {
	return mux.Hello{
		MinVersion: 5, MaxVersion: 5,
		Link:   link.Params{RingAddr: p.mr.Addr(), RingKey: p.mr.RKey(), RingSize: rawPeerRing, Slots: rawPeerSlots},
		Window: 64 << 10, Streams: rawPeerStreams, PID: 1, Token: 1, SessionWindow: 1 << 20,
	}
}

func (p *rawPeer) param(hello []byte) rcm.ConnParam {
	return rcm.ConnParam{
		PrivateData: hello, Access: verbs.AccessRemoteWrite,
		Prepare: func(qp *verbs.QP) error {
			_, err := qp.PostRecv(make([]verbs.RecvWR, 2*rawPeerSlots))
			return err
		},
	}
}

// dial connects to a listener and says hello.
func (p *rawPeer) dial(address string, hello []byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), hang.Time)
	defer cancel()
	route, err := p.by.Resolve(ctx, netip.MustParseAddrPort(address))
	if err != nil {
		return err
	}
	if p.conn, err = route.Connect(ctx, p.qp, p.param(hello)); err != nil {
		return err
	}
	return p.learn()
}

// greet sends the first messages of the dialing side, and waits for those of the listener.
func (p *rawPeer) greet() error {
	if err := p.send(frame(mux.FramePing, 0, 0, nil)); err != nil {
		return err
	}
	if err := p.write(0, nil, creditImm(0, rawPeerRing, rawPeerSlots)); err != nil {
		return err
	}
	const first = 3 // ADDRS, PING, a credit message
	end := time.Now().Add(hang.Time)
	for received := 0; received < first; {
		received += p.receive()
		if time.Now().After(end) {
			return fmt.Errorf("%d of the listener's first messages have come", received)
		}
	}
	return nil
}

// accept waits for a dial to ln, and answers with hello.
func (p *rawPeer) accept(ln rcm.Listener, hello []byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), hang.Time)
	defer cancel()
	req, err := ln.Accept(ctx)
	if err != nil {
		return err
	}
	if p.peer, err = mux.ParseHello(req.PrivateData()); err != nil {
		return err
	}
	if p.conn, err = req.Accept(ctx, p.qp, p.param(hello)); err != nil {
		return err
	}
	if err = p.tx.Init(p.peer.Link.RingSize); err != nil {
		return err
	}
	// The dial waits for these.
	if err = p.send(addrsOf(0, min(rawPeerStreams, p.peer.Streams))); err != nil {
		return err
	}
	if err = p.send(frame(mux.FramePing, 0, 0, nil)); err != nil {
		return err
	}
	return p.write(0, nil, creditImm(0, rawPeerRing, rawPeerSlots))
}

func (p *rawPeer) learn() (err error) {
	if p.peer, err = mux.ParseHello(p.conn.PrivateData()); err != nil {
		return err
	}
	return p.tx.Init(p.peer.Link.RingSize)
}

// close ends the raw peer, in which state ever it is.
func (p *rawPeer) close() {
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

// dialRawPeer returns a connected and well-behaved raw peer that ends with the
// test.
func dialRawPeer(t testing.TB, address string) *rawPeer {
	t.Helper()
	p := newRawPeer(t)
	t.Cleanup(p.close)
	h := p.hello()
	require.NoError(t, p.dial(address, h.Marshal()))
	require.NoError(t, p.greet())
	return p
}

// send writes a message to where the peer expects it.
func (p *rawPeer) send(msg []byte) error { return p.write(p.reserve(len(msg)), msg, immFrames) }

// reserve returns where the next message of n bytes goes. Without a pace it
// pretends that all was released.
func (p *rawPeer) reserve(n int) uint32 {
	for {
		if off, ok := p.tx.Reserve(n); ok {
			return off
		}
		if p.pace == nil {
			p.tx.Credit(p.tx.Sent())
		} else {
			p.tx.Credit(p.pace.Link().Stats().Released)
			runtime.Gosched()
		}
	}
}

// write writes a message anywhere, with any immediate.
func (p *rawPeer) write(off uint32, msg []byte, imm uint32) error {
	return p.post(verbs.SendWR{
		Opcode: verbs.OpWriteWithImm, Flags: verbs.SendInline, Inline: [][]byte{msg}, Imm: imm,
		RemoteAddr: p.peer.Link.RingAddr + uint64(off), RKey: p.peer.Link.RingKey,
	})
}

func (p *rawPeer) post(wr verbs.SendWR) error {
	for end := time.Now().Add(hang.Time); ; {
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

// receive polls, and returns how many messages have come.
func (p *rawPeer) receive() (n int) {
	for _, wc := range p.poll() {
		if wc.Opcode == verbs.WCRecvWriteWithImm && wc.Status == verbs.WCSuccess {
			n++
		}
	}
	return n
}

// poll takes completions and posts receives again, so that the peer can write
// on and on.
func (p *rawPeer) poll() []verbs.WC {
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
func (p *rawPeer) open(stream uint32) error { return p.send(frame(mux.FrameOpen, stream, 0, nil)) }

// openInFirstPlace opens stream 0 in a message, with some data, that ends at length in the ring.
// Messages of that length which follow lie one over the other when the ring is full.
func (p *rawPeer) openInFirstPlace(length int) error {
	data := make([]byte, length-int(p.tx.Offset())-2*frameHeaderLen)
	return p.send(message(frame(mux.FrameOpen, 0, 0, nil), frame(mux.FrameData, 0, mux.FlagCounted, data)))
}

// former is a stream that is gone after openFormer.
const former = 9

func (p *rawPeer) openFormer() error {
	return p.send(message(frame(mux.FrameOpen, former, 0, nil), frame(mux.FrameReset, former, 0, nil)))
}

// gone reports whether the peer has ended the session.
func (p *rawPeer) gone() bool {
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
	var b [mux.AddrsLen]byte
	r := mux.SlotAddrs{Slot: first, Count: count, Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(10_000+first))}
	r.Put(&b)
	return frame(mux.FrameAddrs, 0, 0, b[:])
}

func windowFrame(stream uint32, limit uint64) []byte {
	return frame(mux.FrameWindow, stream, 0, position(limit))
}

// closeFrame returns the FIN of a Close.
func closeFrame(stream uint32, sent, read uint64) []byte {
	return frame(mux.FrameFin, stream, mux.FlagClosed, append(position(sent), position(read)...))
}

// position is the payload of a frame that says one.
func position(at uint64) []byte { return binary.LittleEndian.AppendUint64(nil, at) }
