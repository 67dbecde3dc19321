package kernelcm

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/cmtest"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

// Connections with rping of librdmacm's examples. Its client announces memory
// in a message of 16 bytes {address, rkey, length}, big endian; the server
// READs it and answers with any 16 bytes; the client announces other memory;
// the server WRITEs there what it read and answers again.

const (
	rpingSize  = 8192 // bytes a ping
	rpingCount = 20

	// Offsets in the memory of a side.
	rpingRecv  = 0
	rpingSend  = 64
	rpingStart = 4096
	rpingSink  = rpingStart + rpingSize
)

// rpinger is a side that speaks the protocol.
type rpinger struct {
	side *cmtest.Side
	mr   *verbs.MR
	qp   *verbs.QP
}

func newRpinger(f *cmtest.Fabric, t *testing.T) *rpinger {
	t.Helper()
	s := f.NewSide(t)
	mr, err := s.Pd.AllocMR(rpingSink+rpingSize, verbs.AccessLocalWrite|verbs.AccessRemoteRead|verbs.AccessRemoteWrite, verbs.MROptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, mr.Close()) })
	return &rpinger{side: s, mr: mr, qp: s.QP(t)}
}

func (p *rpinger) param() rcm.ConnParam {
	return rcm.ConnParam{ResponderResources: 1, InitiatorDepth: 1, Prepare: p.receive}
}

func (p *rpinger) receive(qp *verbs.QP) error {
	_, err := qp.PostRecv([]verbs.RecvWR{{SGL: []verbs.SGE{p.mr.SGE(rpingRecv, 16)}}})
	return err
}

// announce tells the peer of memory of ours; in a server's answer it means
// nothing.
func (p *rpinger) announce(offset int) error {
	b := p.mr.Bytes()[rpingSend:rpingSend:rpingStart]
	b = binary.BigEndian.AppendUint64(b, p.mr.Addr()+uint64(offset))
	b = binary.BigEndian.AppendUint32(b, p.mr.RKey())
	binary.BigEndian.AppendUint32(b, rpingSize)
	return p.post(verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{p.mr.SGE(rpingSend, 16)}})
}

// post carries out one request.
func (p *rpinger) post(wr verbs.SendWR) error {
	wr.Flags |= verbs.SendSignaled
	if _, err := p.qp.PostSend([]verbs.SendWR{wr}); err != nil {
		return err
	}
	return p.complete(false)
}

// Complete waits for the completion of a receive or of something else. A
// receive may come before the send that led to it is complete.
func (p *rpinger) complete(receive bool) error {
	for {
		wc, err := p.side.Next()
		if err != nil {
			return err
		}
		switch isReceive := wc.Opcode == verbs.WCRecv; {
		case isReceive == receive:
			return nil
		case isReceive:
			p.side.Early++
		default:
			return fmt.Errorf("unexpected completion %+v", wc)
		}
	}
}

// await waits for the peer's message and makes room for the next.
func (p *rpinger) await() (addr uint64, rkey, length uint32, err error) {
	if p.side.Early > 0 {
		p.side.Early--
	} else if err := p.complete(true); err != nil {
		return 0, 0, 0, err
	}
	b := p.mr.Bytes()[rpingRecv:]
	addr, rkey, length = binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:])
	return addr, rkey, length, p.receive(p.qp)
}

// pong serves one ping.
func (p *rpinger) pong() error {
	addr, rkey, length, err := p.await()
	if err != nil {
		return err
	}
	if length != rpingSize {
		return fmt.Errorf("client announces %d bytes", length)
	}
	buf := []verbs.SGE{p.mr.SGE(rpingStart, rpingSize)}
	if err := p.post(verbs.SendWR{Opcode: verbs.OpRead, SGL: buf, RemoteAddr: addr, RKey: rkey}); err != nil {
		return err
	}
	if err := p.announce(0); err != nil {
		return err
	}
	if addr, rkey, _, err = p.await(); err != nil {
		return err
	}
	if err := p.post(verbs.SendWR{Opcode: verbs.OpWrite, SGL: buf, RemoteAddr: addr, RKey: rkey}); err != nil {
		return err
	}
	return p.announce(0)
}

// ping has the server read and write back some text.
func (p *rpinger) ping(number int) error {
	start, sink := p.mr.Bytes()[rpingStart:rpingSink], p.mr.Bytes()[rpingSink:rpingSink+rpingSize]
	clear(sink)
	// C ends its text with a zero byte and writes back as much.
	copy(start, bytes.Repeat([]byte{byte('A' + number%26)}, rpingSize-1))
	start[rpingSize-1] = 0
	for _, offset := range []int{rpingStart, rpingSink} {
		if err := p.announce(offset); err != nil {
			return err
		}
		if _, _, _, err := p.await(); err != nil {
			return err
		}
	}
	if !bytes.Equal(start, sink) {
		return fmt.Errorf("ping %d came back as %q", number, sink[:16])
	}
	return nil
}

// rping starts the C program; -V makes its client compare what comes back.
func rping(t *testing.T, role string, addr netip.AddrPort) *program {
	t.Helper()
	return startProgram(t, "rping", role, "-a", addr.Addr().String(), "-p", strconv.Itoa(int(addr.Port())),
		"-C", strconv.Itoa(rpingCount), "-S", strconv.Itoa(rpingSize), "-v", "-V")
}

func TestARpingClientIsServed(t *testing.T) {
	overDevices(t, func(t *testing.T, f *cmtest.Fabric) {
		addr := f.Addr(t)
		l := f.MustListen(t, addr, rcm.ListenConfig{})
		p := newRpinger(f, t)
		client := rping(t, "-c", addr)

		r, err := l.Accept(cmtest.Within(t))
		require.NoError(t, err)
		c, err := r.Accept(cmtest.Within(t), p.qp, p.param())
		require.NoError(t, err)
		for i := range rpingCount {
			require.NoError(t, p.pong(), "ping %d; client says %s", i, client.said())
		}
		cmtest.Await(t, c.Disconnected()) // ends with the client's DREQ
		require.ErrorIs(t, c.Err(), rcm.ErrDisconnected)
		require.NoError(t, c.Disconnect())
		require.NoError(t, client.wait())
		require.Contains(t, client.said(), "rdma-ping-"+strconv.Itoa(rpingCount-1))
		require.NotContains(t, client.said(), "mismatch")
	})
}

func TestARpingServerServes(t *testing.T) {
	overDevices(t, func(t *testing.T, f *cmtest.Fabric) {
		addr := f.Addr(t)
		server := rping(t, "-s", addr)
		p, c := dialUntilServed(f, t, addr)
		for i := range rpingCount {
			require.NoError(t, p.ping(i))
		}
		require.NoError(t, c.Disconnect())
		require.NoError(t, server.wait())
		require.Contains(t, server.said(), "server ping data: AAAA")
	})
}

// dialUntilServed dials a program that has just been started.
func dialUntilServed(f *cmtest.Fabric, t *testing.T, addr netip.AddrPort) (*rpinger, rcm.Conn) {
	t.Helper()
	deadline := time.Now().Add(cmtest.Timeout)
	for {
		// A QP that failed is of no use to siw any more.
		p := newRpinger(f, t)
		c, err := f.MustResolve(t, addr).Connect(cmtest.Within(t), p.qp, p.param())
		if err == nil {
			return p, c
		}
		require.ErrorIs(t, err, rcm.ErrNoListener)
		require.True(t, time.Now().Before(deadline), "nobody listens after a minute")
		time.Sleep(20 * time.Millisecond)
	}
}
