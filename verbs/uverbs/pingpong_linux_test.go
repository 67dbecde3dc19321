package uverbs_test

import (
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// pingPong is what ibv_rc_pingpong of rdma-core does: two QPs send each other
// messages in turn, the next one when that of the peer has arrived. The peers
// tell each other their addresses through a TCP connection.
type pingPong struct {
	device string
	size   int // bytes of a message
	rounds int
	events bool // wait for completions on the channel, instead of polling
	thread bool // and there block the thread
	check  bool // look at what arrives

	ctx *verbs.Context
	ch  *verbs.CompChannel
	cq  *verbs.CQ
	qp  *verbs.QP
	mr  *verbs.MR
	gid verbs.GIDEntry

	send    []verbs.SendWR // made once
	recv    []verbs.RecvWR
	posted  int // receives that wait
	elapsed time.Duration
}

const (
	pingPongReceives = 500
	pingPongSendID   = 2
	pingPongRecvID   = 1
)

// prepare makes everything that needs no peer.
func (p *pingPong) prepare(gid func(*verbs.Context) (verbs.GIDEntry, error)) (err error) {
	if p.ctx, err = verbs.Open(p.device); err != nil {
		return err
	}
	if p.gid, err = gid(p.ctx); err != nil {
		return err
	}
	pd, err := p.ctx.AllocPD()
	if err != nil {
		return err
	}
	if p.mr, err = pd.AllocMR(p.size, verbs.AccessLocalWrite, verbs.MROptions{}); err != nil {
		return err
	}
	if p.ch, err = p.ctx.CreateCompChannel(); err != nil {
		return err
	}
	if p.cq, err = p.ctx.CreateCQ(verbs.CQAttr{CQE: pingPongReceives + 1}, p.ch); err != nil {
		return err
	}
	p.qp, err = pd.CreateQP(verbs.QPInitAttr{
		Type: verbs.QPTypeRC, SendCQ: p.cq, RecvCQ: p.cq,
		Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: pingPongReceives, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	if err != nil {
		return err
	}
	p.send = []verbs.SendWR{{ID: pingPongSendID, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{p.mr.SGE(0, p.size)}}}
	p.recv = make([]verbs.RecvWR, pingPongReceives)
	for i := range p.recv {
		p.recv[i] = verbs.RecvWR{ID: pingPongRecvID, SGL: p.send[0].SGL}
	}
	if err := p.qp.Modify(verbs.QPAttr{State: verbs.QPStateInit, Port: 1},
		verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess); err != nil {
		return err
	}
	return p.refill()
}

// refill posts receives up to the most.
func (p *pingPong) refill() error {
	n, err := p.qp.PostRecv(p.recv[:pingPongReceives-p.posted])
	p.posted += n
	return err
}

// The message of the TCP connection: LID, QP number, first packet number and
// GID in hexadecimal digits, and a zero byte.
const pingPongMessage = len("0000:000000:000000:00000000000000000000000000000000") + 1

const pingPongPSN = 0x1234

// patience is for what must happen; no test that succeeds waits that long.
const patience = time.Minute

func (p *pingPong) address() []byte {
	return fmt.Appendf(nil, "%04x:%06x:%06x:%s\x00", 0, p.qp.Num(), pingPongPSN, hex.EncodeToString(p.gid.GID[:]))
}

func (p *pingPong) readAddress(c net.Conn) (qpn, psn uint32, gid verbs.GID, err error) {
	b := make([]byte, pingPongMessage)
	if _, err = io.ReadFull(c, b); err != nil {
		return
	}
	var lid uint32
	var text string
	if _, err = fmt.Sscanf(string(b[:len(b)-1]), "%x:%x:%x:%32s", &lid, &qpn, &psn, &text); err != nil {
		return
	}
	_, err = hex.Decode(gid[:], []byte(text))
	return
}

// serve waits for a client on ln, and plays with it.
func (p *pingPong) serve(ln *net.TCPListener) error {
	if err := ln.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	c, err := ln.Accept() // ends with a client, or after patience
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	qpn, psn, gid, err := p.readAddress(c)
	if err != nil {
		return err
	}
	if err := p.connect(qpn, psn, gid); err != nil {
		return err
	}
	if _, err := c.Write(p.address()); err != nil {
		return err
	}
	if err := p.arm(); err != nil {
		return err
	}
	if _, err := io.ReadFull(c, make([]byte, len("done")+1)); err != nil {
		return err
	}
	return p.play(false)
}

// dial plays with the server at addr.
func (p *pingPong) dial(addr string) error {
	c, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := c.Write(p.address()); err != nil {
		return err
	}
	qpn, psn, gid, err := p.readAddress(c)
	if err != nil {
		return err
	}
	if err := p.arm(); err != nil {
		return err
	}
	if err := p.connect(qpn, psn, gid); err != nil {
		return err
	}
	if _, err := c.Write([]byte("done\x00")); err != nil {
		return err
	}
	return p.play(true)
}

func (p *pingPong) arm() error {
	if !p.events {
		return nil
	}
	return p.cq.Arm(false)
}

func (p *pingPong) connect(qpn, psn uint32, gid verbs.GID) error {
	if err := p.qp.Modify(verbs.QPAttr{
		State: verbs.QPStateRTR, PathMTU: verbs.MTU1024, DestQPN: qpn, RQPSN: psn, MaxDestRdAtomic: 1, MinRNRTimer: 12,
		AV: verbs.AddressVector{DGID: gid, SGIDIndex: uint8(p.gid.Index), HopLimit: 1, IsGlobal: true, Port: 1},
	}, verbs.QPAttrState|verbs.QPAttrAV|verbs.QPAttrPathMTU|verbs.QPAttrDestQPN|verbs.QPAttrRQPSN|
		verbs.QPAttrMaxDestRdAtomic|verbs.QPAttrMinRNRTimer); err != nil {
		return err
	}
	return p.qp.Modify(verbs.QPAttr{State: verbs.QPStateRTS, Timeout: 14, RetryCount: 7, RNRRetry: 7, SQPSN: pingPongPSN, MaxRdAtomic: 1},
		verbs.QPAttrState|verbs.QPAttrTimeout|verbs.QPAttrRetryCount|verbs.QPAttrRNRRetry|verbs.QPAttrSQPSN|verbs.QPAttrMaxRdAtomic)
}

// play sends and receives rounds messages. A send follows when the one before
// it is done and a message of the peer has arrived.
func (p *pingPong) play(first bool) error {
	start := time.Now()
	pending := false
	post := func() error {
		pending = true
		_, err := p.qp.PostSend(p.send)
		return err
	}
	if first {
		if err := post(); err != nil {
			return err
		}
	}
	var wcs [2]verbs.WC
	sent, got, owed := 0, 0, 0
	for sent < p.rounds || got < p.rounds {
		n, err := p.completions(wcs[:], start.Add(patience))
		if err != nil {
			return err
		}
		for _, wc := range wcs[:n] {
			if wc.Status != verbs.WCSuccess {
				return fmt.Errorf("completion of %d after %d rounds: %w", wc.ID, got, wc.Status)
			}
			if wc.ID == pingPongSendID {
				sent++
				pending = false
				continue
			}
			if err := p.arrived(got); err != nil {
				return err
			}
			got++
			owed++
			if p.posted--; p.posted <= 1 {
				if err := p.refill(); err != nil {
					return err
				}
			}
		}
		if owed > 0 && !pending && (sent < p.rounds) {
			owed--
			p.stamp(sent)
			if err := post(); err != nil {
				return err
			}
		}
	}
	p.elapsed = time.Since(start)
	return nil
}

// completions waits for one or two completions, or until the game's deadline.
// Who polls looks at the clock now and then only: it would be timed too.
func (p *pingPong) completions(wcs []verbs.WC, deadline time.Time) (int, error) {
	for polls := 1; ; polls++ {
		n, err := p.cq.Poll(wcs)
		if n > 0 || err != nil {
			return n, err
		}
		if !p.events {
			if polls%(1<<12) == 0 && time.Now().After(deadline) {
				return 0, os.ErrDeadlineExceeded
			}
			continue
		}
		if p.thread { // ends with a completion or the deadline
			err = p.ch.WaitThread(deadline)
		} else {
			err = p.ch.Wait(deadline)
		}
		if err != nil {
			return 0, err
		}
		if err := p.cq.Arm(false); err != nil {
			return 0, err
		}
	}
}

// stamp and arrived number the messages, where both ends look at them: the
// memory is one for both directions, as it is in the C program.
func (p *pingPong) stamp(n int) {
	if p.check {
		p.mr.Bytes()[0], p.mr.Bytes()[p.size-1] = byte(n), byte(n>>8)
	}
}

func (p *pingPong) arrived(n int) error {
	b := p.mr.Bytes()
	if p.check && (b[0] != byte(n) || b[p.size-1] != byte(n>>8)) {
		return fmt.Errorf("message %d has the stamp %d", n, int(b[0])|int(b[p.size-1])<<8)
	}
	return nil
}
