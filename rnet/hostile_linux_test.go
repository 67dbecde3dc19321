package rnet

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/internal/leak"
	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/ring"
	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
	"github.com/seed-b9b531af/ramjet/rnet/internal/mux"
	"github.com/seed-b9b531af/ramjet/rnet/internal/traffic"
	"github.com/seed-b9b531af/ramjet/verbs"
)

// attacks are what a peer must not do. Each is made on a session of its own
// with stream 0 open; it has to end that session, and nothing else. The stream's
// other end is nil if it is in another process, where somebody else writes.
var attacks = []struct {
	name string
	do   func(p *rawPeer, s *Conn) error
}{
	{"frame of kind 0", func(p *rawPeer, _ *Conn) error { return p.send(frame(0, 0, 0, nil)) }},
	{"frame of the reserved kind", func(p *rawPeer, _ *Conn) error { return p.send(frame(mux.FrameAccept, 0, 0, nil)) }},
	{"frame of an unknown kind", func(p *rawPeer, _ *Conn) error { return p.send(frame(99, 0, 0, nil)) }},
	{"bytes of noise", func(p *rawPeer, _ *Conn) error { return p.send(traffic.Bytes(99, 4096)) }},
	{"message shorter than a header", func(p *rawPeer, _ *Conn) error { return p.send(make([]byte, frameHeaderLen-1)) }},
	{"message without bytes", func(p *rawPeer, _ *Conn) error { return p.write(0, nil, immFrames) }},
	{"frame longer than its message", func(p *rawPeer, _ *Conn) error {
		msg := frame(mux.FrameData, 0, 0, make([]byte, 64))
		return p.send(msg[:len(msg)-1])
	}},
	{"frame of 4 GiB", func(p *rawPeer, _ *Conn) error {
		msg := frame(mux.FrameData, 0, 0, make([]byte, 64))
		copy(msg[8:], []byte{0xff, 0xff, 0xff, 0xff})
		return p.send(msg)
	}},
	{"good frame and a bad one behind it", func(p *rawPeer, _ *Conn) error {
		return p.send(message(frame(mux.FrameData, 0, 0, []byte("x")), frame(77, 0, 0, nil)))
	}},
	{"half a header behind a good frame", func(p *rawPeer, _ *Conn) error {
		return p.send(append(frame(mux.FramePing, 0, 0, nil), 1, 2, 3))
	}},
	{"data of a stream that was not opened", func(p *rawPeer, _ *Conn) error {
		return p.send(frame(mux.FrameData, 1, 0, []byte("hello?")))
	}},
	{"end of a stream that will be opened", func(p *rawPeer, _ *Conn) error {
		return p.send(message(frame(mux.FrameFin, 1<<slotBits, 0, position(0)), frame(mux.FrameReset, 0, 0, nil), frame(mux.FrameOpen, 1<<slotBits, 0, nil)))
	}},
	{"stream opened twice", func(p *rawPeer, _ *Conn) error { return p.open(0) }},
	{"window of the wrong size", func(p *rawPeer, _ *Conn) error { return p.send(frame(mux.FrameWindow, 0, 0, []byte{1, 2, 3})) }},
	{"window of the universe", func(p *rawPeer, s *Conn) error {
		if err := p.send(windowFrame(0, 1<<63)); err != nil {
			return err
		}
		return writeUntilError(s)
	}},
	{"credit for bytes that were never sent", func(p *rawPeer, s *Conn) error {
		if err := p.send(withCredit(mux.FramePing, 0, 0, nil, 1<<24, rawPeerSlots)); err != nil {
			return err
		}
		return writeAll(p, s)
	}},
	{"slots that cannot be", func(p *rawPeer, s *Conn) error {
		if err := p.send(withCredit(mux.FramePing, 0, 0, nil, 0, rawPeerSlots+1000)); err != nil {
			return err
		}
		return writeAll(p, s)
	}},
	{"credit message for bytes that were never sent", func(p *rawPeer, s *Conn) error {
		if err := p.write(0, nil, creditImm(3*rawPeerRing, rawPeerRing, rawPeerSlots)); err != nil {
			return err
		}
		return writeAll(p, s)
	}},
	{"data beyond the window", func(p *rawPeer, _ *Conn) error {
		for range int(p.peer.Window)/maxPayload + 1 {
			if err := p.send(frame(mux.FrameData, 0, mux.FlagCounted, make([]byte, maxPayload))); err != nil {
				return err
			}
		}
		return nil
	}},
	{"data that does not count beyond a stream's minimum", func(p *rawPeer, _ *Conn) error {
		return p.send(frame(mux.FrameData, 0, 0, make([]byte, mux.StreamMinimum+1)))
	}},
	{"first data that does not count beyond a stream's minimum", func(p *rawPeer, _ *Conn) error {
		return p.send(frame(mux.FrameOpen, 1, 0, make([]byte, mux.StreamMinimum+1)))
	}},
	{"FIN without a length", func(p *rawPeer, _ *Conn) error {
		return p.send(frame(mux.FrameFin, 0, 0, nil))
	}},
	{"FIN of a Close without a position", func(p *rawPeer, _ *Conn) error {
		return p.send(frame(mux.FrameFin, 0, mux.FlagClosed, position(0)))
	}},
	{"FIN of a Close that has read what was never sent", func(p *rawPeer, _ *Conn) error {
		return p.send(closeFrame(0, 0, 1<<40))
	}},
	{"FIN of more than was sent", func(p *rawPeer, _ *Conn) error {
		return p.send(message(frame(mux.FrameData, 0, 0, []byte("x")), frame(mux.FrameFin, 0, 0, position(2))))
	}},
	{"FIN of a Close of less than was sent", func(p *rawPeer, _ *Conn) error {
		return p.send(message(frame(mux.FrameData, 0, 0, []byte("x")), closeFrame(0, 0, 0)))
	}},
	{"session window of the wrong size", func(p *rawPeer, _ *Conn) error {
		return p.send(frame(mux.FrameSessionWindow, 0, 0, []byte{1, 2, 3}))
	}},
	{"session window of the universe", func(p *rawPeer, _ *Conn) error {
		return p.send(frame(mux.FrameSessionWindow, 0, 0, position(1<<63)))
	}},
	{"SEND instead of WRITE", func(p *rawPeer, _ *Conn) error {
		return p.post(verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendInline, Inline: [][]byte{{1}}})
	}},
	{"write outside of the ring", func(p *rawPeer, _ *Conn) error {
		return p.write(p.peer.Link.RingSize-8, make([]byte, 64), immFrames)
	}},
	{"write with a key that is none", func(p *rawPeer, _ *Conn) error {
		p.peer.Link.RingKey ^= 0x5a5a5a5a
		return p.send(frame(mux.FramePing, 0, 0, nil))
	}},
}

// writeAll opens the window, so that the ring is what runs out, and writes.
func writeAll(p *rawPeer, s *Conn) error {
	if err := p.send(windowFrame(0, 1<<29)); err != nil {
		return err
	}
	return writeUntilError(s)
}

// writeUntilError writes what the peer's lies would allow. The reset is told once.
func writeUntilError(c *Conn) error {
	if c == nil {
		return nil
	}
	c.SetWriteDeadline(time.Now().Add(hang.Time))
	for {
		if _, err := c.Write(make([]byte, 64<<10)); err != nil {
			if !errors.Is(err, syscall.ECONNRESET) {
				return err
			}
			if _, err = c.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
				return fmt.Errorf("the Write after that: %v", err)
			}
			return nil
		}
	}
}

func TestAttackEndsItsSessionAndNothingElse(t *testing.T) {
	leak.Check(t)
	ln := overSoft.listen(t)
	decent, server := overSoft.connect(t, ln) // goes on all the time
	var echoes sync.WaitGroup
	stop := make(chan struct{})
	echoes.Go(func() {
		io.Copy(server, server)
		server.Close()
	})
	echoes.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				decent.Close()
				return
			default:
			}
			data := traffic.Bytes(uint64(i), 1000)
			_, err := decent.Write(data)
			if !assert.NoError(t, err) {
				return
			}
			got := make([]byte, len(data))
			_, err = io.ReadFull(decent, got)
			if !assert.NoError(t, err) || !assert.Equal(t, data, got) {
				return
			}
		}
	})
	for _, attack := range attacks {
		t.Run(attack.name, func(t *testing.T) {
			p := dialRawPeer(t, ln.Addr().String())
			require.NoError(t, p.open(0))
			victim, err := ln.Accept()
			require.NoError(t, err)
			defer victim.Close()
			s := victim.(*Conn)
			await := hang.Start(t, func() { assert.NoError(t, attack.do(p, s)) })
			await()
			hang.Eventually(t, "end of the session", p.gone)
			s.SetReadDeadline(time.Now().Add(hang.Time))
			_, err = io.Copy(io.Discard, s)
			require.ErrorIs(t, err, syscall.ECONNRESET)
			_, err = s.Write([]byte("x"))
			require.ErrorIs(t, err, syscall.EPIPE) // a Read was told of the reset
			c, err := (&Dialer{Transport: Soft, Dedicated: true}).Dial("tcp", ln.Addr().String())
			require.NoError(t, err, "the listener goes on")
			another, err := ln.Accept()
			require.NoError(t, err)
			another.Close()
			c.Close()
		})
	}
	close(stop)
	hang.Start(t, echoes.Wait)()
}

func TestDataBeyondTheSessionWindowEndsTheSession(t *testing.T) {
	leak.Check(t)
	ln := smallSession.listen(t)
	p := dialRawPeer(t, ln.Addr().String())
	require.NoError(t, p.open(0))
	victim, err := ln.Accept()
	require.NoError(t, err)
	defer victim.Close()
	for range mux.MinSessionWindow / maxPayload {
		require.NoError(t, p.send(frame(mux.FrameData, 0, mux.FlagCounted, make([]byte, maxPayload))))
	}
	require.NoError(t, p.send(frame(mux.FrameData, 0, mux.FlagCounted, []byte("x"))))
	hang.Eventually(t, "end of the session", p.gone)
	require.ErrorIs(t, victim.(*Conn).s.mux.Err(), mux.ErrProtocol)
}

// More comes than the ring can hold, and nobody reads it. What lies over the first is the same.
func TestMessagesBeyondTheRingEndTheSession(t *testing.T) {
	leak.Check(t)
	ln := carrier{name: "small ring", transport: Soft, limits: Limits{RingSize: minRingSize}}.listen(t)
	p := dialRawPeer(t, ln.Addr().String())
	require.NoError(t, p.openInFirstPlace(maxPayload))
	victim, err := ln.Accept()
	require.NoError(t, err)
	defer victim.Close()
	goOn := stopPolling(t, victim.(*Conn).s)
	for range p.peer.Link.RingSize/maxPayload + 1 {
		require.NoError(t, p.send(frame(mux.FrameData, 0, mux.FlagCounted, make([]byte, maxPayload-frameHeaderLen))))
	}
	goOn()
	hang.Eventually(t, "end of the session", p.gone)
	require.ErrorIs(t, victim.(*Conn).s.mux.Err(), ring.ErrOverrun)
}

// nonsense is what a hello must not say, for each kind of answer to it; package mux has
// them all.
var nonsense = []struct {
	name   string
	change func(h *mux.Hello)
	want   string // reason of a dial that gets it
}{
	{"version of the future", func(h *mux.Hello) { h.MinVersion, h.MaxVersion = 254, 255 }, "version-mismatch"},
	{"huge ring", func(h *mux.Hello) { h.Link.RingSize = 2 * maxRingSize }, "handshake-garbage"},
	{"ring that we would have to pay for", func(h *mux.Hello) { h.Link.RingSize = 2 * link.MaxChargedRing }, "no-memory"},
	{"no streams", func(h *mux.Hello) { h.Streams = 0 }, "handshake-garbage"},
}

// oddities are unusual, but do no harm.
var oddities = []struct {
	name string
	do   func(p *rawPeer) error
}{
	{"frames for a stream that is gone", func(p *rawPeer) error {
		if err := p.openFormer(); err != nil {
			return err
		}
		return p.send(message(
			frame(mux.FrameData, former, 0, []byte("hello?")), closeFrame(former, 6, 0),
			frame(mux.FrameReset, former, 0, nil), windowFrame(former, 1<<62)))
	}},
	{"stream with an id far above the limit", func(p *rawPeer) error { return p.open(1<<slotBits - 1) }},
	{"thousands of streams opened and reset", func(p *rawPeer) error {
		for i := range uint32(5000) {
			id := i%7 + 1 | i<<slotBits
			if err := p.send(message(frame(mux.FrameOpen, id, 0, nil), frame(mux.FrameReset, id, 0, nil))); err != nil {
				return err
			}
			p.poll()
		}
		return nil
	}},
	{"more streams than a listener keeps for Accept", func(p *rawPeer) error {
		for i := 0; i < maxBacklog+1000; {
			var frames [][]byte
			for range 500 { // open and reset, again and again
				id := uint32(1 + i<<slotBits)
				frames = append(frames, frame(mux.FrameOpen, id, 0, nil), frame(mux.FrameReset, id, 0, nil))
				i++
			}
			if err := p.send(message(frames...)); err != nil {
				return err
			}
			p.poll()
		}
		return nil
	}},
	{"data and FIN together with the OPEN", func(p *rawPeer) error {
		return p.send(message(frame(mux.FrameOpen, 3, 0, []byte("a")), frame(mux.FrameData, 3, 0, []byte("b")), closeFrame(3, 2, 0)))
	}},
	{"credit that was given before", func(p *rawPeer) error {
		return p.write(0, nil, creditImm(0, rawPeerRing, 0))
	}},
	{"streams that say they are blocked, and are not", func(p *rawPeer) error {
		if err := p.openFormer(); err != nil {
			return err
		}
		for i := range 3000 {
			if err := p.send(frame(mux.FrameBlocked, uint32(i%2)*former, 0, nil)); err != nil {
				return err
			}
			p.poll()
		}
		return nil
	}},
	{"pings", func(p *rawPeer) error {
		for range 3000 {
			if err := p.send(frame(mux.FramePing, 0, 0, nil)); err != nil {
				return err
			}
			p.poll()
		}
		return nil
	}},
	{"bytes that change while they are read", func(p *rawPeer) error {
		if err := p.openFormer(); err != nil {
			return err
		}
		// The same place of the ring is written again and again, announced or not.
		for i := range 2000 {
			msg := frame(mux.FrameData, former, 0, traffic.Bytes(uint64(i), 512))
			off := p.reserve(len(msg))
			if err := p.write(off, msg, immFrames); err != nil {
				return err
			}
			if err := p.post(verbs.SendWR{
				Opcode: verbs.OpWrite, Flags: verbs.SendInline, Inline: [][]byte{traffic.Bytes(uint64(i), 64)[frameHeaderLen:]},
				RemoteAddr: p.peer.Link.RingAddr + uint64(off) + frameHeaderLen, RKey: p.peer.Link.RingKey,
			}); err != nil {
				return err
			}
			p.poll()
		}
		return nil
	}},
}

func TestOddPeerIsServed(t *testing.T) {
	leak.Check(t)
	for _, odd := range oddities {
		t.Run(odd.name, func(t *testing.T) {
			ln := overSoft.listen(t)
			p := dialRawPeer(t, ln.Addr().String())
			require.NoError(t, p.open(0))
			victim, err := ln.Accept()
			require.NoError(t, err)
			defer victim.Close()
			p.pace = victim.(*Conn).s.mux
			await := hang.Start(t, func() { assert.NoError(t, odd.do(p)) })
			await()
			require.NoError(t, p.send(frame(mux.FrameData, 0, 0, []byte("still there"))))
			buf := make([]byte, 11)
			victim.SetReadDeadline(time.Now().Add(hang.Time))
			_, err = io.ReadFull(victim, buf)
			require.NoError(t, err)
			require.Equal(t, "still there", string(buf))
			require.False(t, p.gone())
			ln.(*Listener).mu.Lock()
			defer ln.(*Listener).mu.Unlock()
			require.LessOrEqual(t, len(ln.(*Listener).queue), maxBacklog)
		})
	}
}

func TestNonsenseHelloIsRejected(t *testing.T) {
	leak.Check(t)
	ln := overSoft.listen(t)
	for _, tc := range nonsense {
		t.Run(tc.name, func(t *testing.T) {
			p := newRawPeer(t)
			defer p.close()
			h := p.hello()
			tc.change(&h)
			require.Error(t, p.dial(ln.Addr().String(), h.Marshal()))
		})
	}
	p := newRawPeer(t)
	defer p.close()
	require.Error(t, p.dial(ln.Addr().String(), []byte("GET / HTTP/1.1")))
	overSoft.connect(t, ln)
}

func TestHostileListenerHurtsOnlyItsDialer(t *testing.T) {
	leak.Check(t)
	for name, answer := range map[string]func(p *rawPeer) error{
		"opens a stream":    func(p *rawPeer) error { return p.open(5) },
		"sends noise":       func(p *rawPeer) error { return p.send(traffic.Bytes(1, 100)) },
		"hangs up":          func(p *rawPeer) error { return p.conn.Disconnect() },
		"fails its own QP":  func(p *rawPeer) error { return p.qp.Fail() },
		"resets the stream": func(p *rawPeer) error { return p.send(frame(mux.FrameReset, 0, 0, nil)) },
		"goes and hangs up": func(p *rawPeer) error { p.send(frame(mux.FrameGoAway, 0, 0, nil)); return p.conn.Disconnect() },
		"refuses and resets": func(p *rawPeer) error {
			return p.send(message(frame(mux.FrameGoAway, 0, 0, nil), frame(mux.FrameReset, 0, 0, nil)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			tcp, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			defer tcp.Close()
			ln, err := fabrics[0].Listen(tcp.Addr().(*net.TCPAddr).AddrPort(), rcm.ListenConfig{})
			require.NoError(t, err)
			defer ln.Close()
			p := newRawPeer(t)
			defer p.close()
			h := p.hello()
			await := hang.Start(t, func() { assert.NoError(t, p.accept(ln, h.Marshal())) })
			c, err := (&Dialer{Transport: Soft}).Dial("tcp", tcp.Addr().String())
			require.NoError(t, err)
			defer c.Close()
			await()
			require.NoError(t, answer(p))
			c.SetReadDeadline(time.Now().Add(hang.Time))
			_, err = c.Read(make([]byte, 1))
			require.ErrorIs(t, err, syscall.ECONNRESET)
		})
	}
}

// A dial that TCP has won leaves a session behind that comes later. It ends
// as any other that nobody uses.
func TestSessionThatComesTooLateEnds(t *testing.T) {
	leak.Check(t)
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer tcp.Close()
	ln, err := fabrics[0].Listen(tcp.Addr().(*net.TCPAddr).AddrPort(), rcm.ListenConfig{})
	require.NoError(t, err)
	defer ln.Close()
	c, err := (&Dialer{HeadStart: time.Millisecond}).Dial("tcp", tcp.Addr().String()) // nobody answers the fast dial yet
	require.NoError(t, err)
	defer c.Close()
	require.IsType(t, (*net.TCPConn)(nil), c)
	p := newRawPeer(t)
	defer p.close()
	h := p.hello()
	require.NoError(t, p.accept(ln, h.Marshal()))
	hang.Eventually(t, "the session is there", func() bool { return len(liveSessions.list()) == 1 })
	waitForNoSession(t)
	hang.Eventually(t, "the peer was told", p.gone)
}

func TestListenerWithANonsenseHelloMakesTheDialFallBack(t *testing.T) {
	leak.Check(t)
	for _, tc := range nonsense {
		t.Run(tc.name, func(t *testing.T) {
			tcp, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			defer tcp.Close()
			ln, err := fabrics[0].Listen(tcp.Addr().(*net.TCPAddr).AddrPort(), rcm.ListenConfig{})
			require.NoError(t, err)
			defer ln.Close()
			p := newRawPeer(t)
			defer p.close()
			h := p.hello()
			tc.change(&h)
			await := hang.Start(t, func() { p.accept(ln, h.Marshal()) })
			negatives.Forget(tcp.Addr().String()) // the port may have been another test's
			c, err := (&Dialer{HeadStart: hang.Time}).Dial("tcp", tcp.Addr().String())
			require.NoError(t, err)
			require.IsType(t, (*net.TCPConn)(nil), c)
			c.Close()
			await()
			last := Explain(tcp.Addr().String())
			require.Equal(t, tc.want, last[len(last)-1].Reason)
		})
	}
}
