package uverbs_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// pingPong is what the pingpong programs of rdma-core do: two QPs send each other
// messages in turn, the next one when that of the peer has arrived. With an SRQ
// several pairs of QPs do so at once. The peers tell each other their addresses
// through a TCP connection.
type pingPong struct {
	device  string
	service verbs.QPType // 0: RC
	shared  int          // QPs with an SRQ; 0: one QP, with receives of its own
	size    int          // bytes of a message
	rounds  int          // messages that each end sends, on all QPs together
	events  bool         // wait for completions on the channel, instead of polling
	thread  bool         // and there block the thread
	echo    bool         // the peer sends what it has received, as the C programs do: compare it

	ctx  *verbs.Context
	ch   *verbs.CompChannel
	cq   *verbs.CQ
	qp   *verbs.QP // the first
	mr   *verbs.MR // what is sent, and behind that a place for each receive
	path path

	pairs   []pingPongPair // one for each QP
	srq     *verbs.SRQ
	send    []verbs.SendWR // made once
	recv    []verbs.RecvWR // the same, all that there are
	free    []verbs.RecvWR // of those the ones that are not posted
	elapsed time.Duration
}

// A pingPongPair is a QP with its peer.
type pingPongPair struct {
	qp       *verbs.QP
	peer     *verbs.Datagram // UD
	pending  bool            // a message is under way
	owed     int             // messages that have arrived and are not answered
	received bool            // one has arrived
}

// pingPongAddress is where a QP is.
type pingPongAddress struct {
	lid uint16
	qpn uint32
	psn uint32
	gid verbs.GID
}

const (
	pingPongReceives = 500
	pingPongSendID   = 1 << 32 // receives have the numbers of their places

	pingPongQKey = 0x11111111 // and perftest's
	// Messages of UD arrive behind the GRH, or what is in its place.
	grhSize = 40
	// ibv_srq_pingpong speaks of so many QPs, however few it has.
	pingPongMostQPs = 256
)

// prepare makes everything that needs no peer.
func (p *pingPong) prepare(pathOf func(*verbs.Context) (path, error)) (err error) {
	if p.ctx, err = verbs.Open(p.device); err != nil {
		return err
	}
	if p.path, err = pathOf(p.ctx); err != nil {
		return err
	}
	pd, err := p.ctx.AllocPD()
	if err != nil {
		return err
	}
	if p.service == 0 {
		p.service = verbs.QPTypeRC
	}
	places := pingPongReceives
	if p.size >= 1<<16 {
		places = 10 // memory is locked
	}
	if p.mr, err = pd.AllocMR(p.size+places*p.place(), verbs.AccessLocalWrite, verbs.MROptions{}); err != nil {
		return err
	}
	for i := range places {
		p.recv = append(p.recv, verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{p.mr.SGE(p.size+i*p.place(), p.place())}})
	}
	p.free = append(p.free, p.recv...)
	p.send = []verbs.SendWR{{ID: pingPongSendID, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{p.mr.SGE(0, p.size)}}}
	if p.ch, err = p.ctx.CreateCompChannel(); err != nil {
		return err
	}
	if p.cq, err = p.ctx.CreateCQ(verbs.CQAttr{CQE: places + max(p.shared, 1)}, p.ch); err != nil {
		return err
	}
	init := verbs.QPInitAttr{
		Type: p.service, SendCQ: p.cq, RecvCQ: p.cq,
		Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: places, MaxSendSGE: 1, MaxRecvSGE: 1},
	}
	if p.shared > 0 {
		if p.srq, err = pd.CreateSRQ(verbs.SRQAttr{MaxWR: places, MaxSGE: 1}); err != nil {
			return err
		}
		init.SRQ, init.Cap.MaxRecvWR, init.Cap.MaxRecvSGE = p.srq, 0, 0
	}
	for range max(p.shared, 1) {
		qp, err := pd.CreateQP(init)
		if err != nil {
			return err
		}
		p.pairs = append(p.pairs, pingPongPair{qp: qp})
		mask := verbs.QPAttrState | verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrAccess
		if p.service == verbs.QPTypeUD {
			mask = verbs.QPAttrState | verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrQKey
		}
		if err := qp.Modify(verbs.QPAttr{State: verbs.QPStateInit, Port: 1, QKey: pingPongQKey}, mask); err != nil {
			return err
		}
	}
	p.qp = p.pairs[0].qp
	return p.refill()
}

// place is the size of a receive.
func (p *pingPong) place() int {
	if p.service == verbs.QPTypeUD {
		return grhSize + p.size
	}
	return p.size
}

// refill posts all receives that are free.
func (p *pingPong) refill() error {
	post := p.qp.PostRecv
	if p.srq != nil {
		post = p.srq.PostRecv
	}
	_, err := post(p.free)
	p.free = p.free[:0]
	return err
}

// The message of the TCP connection: LID, QP number, first packet number and
// GID in hexadecimal digits, and a zero byte.
const pingPongMessage = len("0000:000000:000000:00000000000000000000000000000000") + 1

const pingPongPSN = 0x1234

// patience is for what must happen; no test that succeeds waits that long.
const patience = time.Minute

// writeAddresses says where our QPs are.
func (p *pingPong) writeAddresses(c net.Conn) error {
	var b []byte
	for i := range p.addresses() {
		qpn := uint32(0)
		if i < len(p.pairs) {
			qpn = p.pairs[i].qp.Num()
		}
		b = fmt.Appendf(b, "%04x:%06x:%06x:%s\x00", p.path.lid, qpn, pingPongPSN, hex.EncodeToString(p.path.gid.GID[:]))
	}
	_, err := c.Write(b)
	return err
}

// address is where the first QP is.
func (p *pingPong) address() pingPongAddress {
	return pingPongAddress{p.path.lid, p.qp.Num(), pingPongPSN, p.path.gid.GID}
}

// addresses is how many each end sends.
func (p *pingPong) addresses() int {
	if p.shared > 0 {
		return pingPongMostQPs
	}
	return 1
}

// readAddresses returns where the peer's QPs are.
func (p *pingPong) readAddresses(c net.Conn) ([]pingPongAddress, error) {
	list := make([]pingPongAddress, p.addresses())
	for i := range list {
		a := &list[i]
		b := make([]byte, pingPongMessage)
		if _, err := io.ReadFull(c, b); err != nil {
			return nil, err
		}
		var text string
		if _, err := fmt.Sscanf(string(b[:len(b)-1]), "%x:%x:%x:%32s", &a.lid, &a.qpn, &a.psn, &text); err != nil {
			return nil, err
		}
		if _, err := hex.Decode(a.gid[:], []byte(text)); err != nil {
			return nil, err
		}
	}
	return list[:len(p.pairs)], nil
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
	peers, err := p.readAddresses(c)
	if err != nil {
		return err
	}
	if err := p.connect(peers...); err != nil {
		return err
	}
	if err := p.writeAddresses(c); err != nil {
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
	if err := p.writeAddresses(c); err != nil {
		return err
	}
	peers, err := p.readAddresses(c)
	if err != nil {
		return err
	}
	if err := p.arm(); err != nil {
		return err
	}
	if err := p.connect(peers...); err != nil {
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

// connect connects each QP with its peer.
func (p *pingPong) connect(peers ...pingPongAddress) error {
	for i := range p.pairs {
		q, peer := &p.pairs[i], peers[i]
		rtr := verbs.QPAttr{
			PathMTU: verbs.MTU1024, DestQPN: peer.qpn, RQPSN: peer.psn, MaxDestRdAtomic: 1, MinRNRTimer: 12,
			AV: p.path.to(peer.lid, peer.gid),
		}
		rts := verbs.QPAttr{Timeout: 14, RetryCount: 7, RNRRetry: 7, SQPSN: pingPongPSN, MaxRdAtomic: 1}
		if err := toRTS(q.qp, p.service, rtr, rts); err != nil {
			return err
		}
		if p.service != verbs.QPTypeUD {
			continue
		}
		ah, err := q.qp.PD().CreateAH(p.path.to(peer.lid, peer.gid))
		if err != nil {
			return err
		}
		q.peer = &verbs.Datagram{AH: ah, QPN: peer.qpn, QKey: pingPongQKey}
	}
	return nil
}

// toRTS takes a QP from INIT to RTS with what its service needs of the attributes.
func toRTS(qp *verbs.QP, service verbs.QPType, rtr, rts verbs.QPAttr) error {
	rtr.State, rts.State = verbs.QPStateRTR, verbs.QPStateRTS
	ofRTR, ofRTS := verbs.QPAttrState, verbs.QPAttrState|verbs.QPAttrSQPSN
	if service != verbs.QPTypeUD {
		ofRTR |= verbs.QPAttrAV | verbs.QPAttrPathMTU | verbs.QPAttrDestQPN | verbs.QPAttrRQPSN
	}
	if service == verbs.QPTypeRC {
		ofRTR |= verbs.QPAttrMaxDestRdAtomic | verbs.QPAttrMinRNRTimer
		ofRTS |= verbs.QPAttrTimeout | verbs.QPAttrRetryCount | verbs.QPAttrRNRRetry | verbs.QPAttrMaxRdAtomic
	}
	if err := qp.Modify(rtr, ofRTR); err != nil {
		return err
	}
	return qp.Modify(rts, ofRTS)
}

// play sends and receives rounds messages. A send follows when the one before
// it is done and a message of the peer has arrived.
func (p *pingPong) play(first bool) error {
	start := time.Now()
	if first {
		p.stamp(0)
		for i := range p.pairs {
			if err := p.post(&p.pairs[i]); err != nil {
				return err
			}
		}
	}
	var wcs [2]verbs.WC
	sent, got := 0, 0
	for sent < p.rounds || got < p.rounds {
		n, err := p.completions(wcs[:], start.Add(patience))
		if err != nil {
			return err
		}
		for i := range wcs[:n] {
			wc := &wcs[i]
			if wc.Status != verbs.WCSuccess {
				return fmt.Errorf("completion of %d after %d rounds: %w", wc.ID, got, wc.Status)
			}
			q := p.pair(wc.QPN)
			if wc.ID == pingPongSendID {
				sent++
				q.pending = false
			} else {
				if err := p.arrived(wc, first || q.received, got); err != nil {
					return err
				}
				got++
				q.owed++
				q.received = true
				if p.free = append(p.free, p.recv[wc.ID]); len(p.recv)-len(p.free) <= len(p.pairs) {
					if err := p.refill(); err != nil {
						return err
					}
				}
			}
			if q.owed > 0 && !q.pending && sent < p.rounds {
				q.owed--
				p.stamp(got)
				if err := p.post(q); err != nil {
					return err
				}
			}
		}
	}
	p.elapsed = time.Since(start)
	return nil
}

func (p *pingPong) pair(qpn uint32) *pingPongPair {
	for i := range p.pairs {
		if p.pairs[i].qp.Num() == qpn {
			return &p.pairs[i]
		}
	}
	panic(fmt.Sprintf("a completion of QP %#x, which is none of ours", qpn))
}

func (p *pingPong) post(q *pingPongPair) error {
	q.pending = true
	p.send[0].Datagram = q.peer
	_, err := q.qp.PostSend(p.send)
	return err
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

// stamp writes the n-th message. Those of several QPs are the same: their peers have one memory
// for all.
func (p *pingPong) stamp(n int) {
	if p.echo && p.shared <= 1 {
		fill(p.mr.Bytes()[:p.size], n)
	} else if p.echo {
		fill(p.mr.Bytes()[:p.size], 0)
	}
}

// arrived looks at a message. It is one of ours that comes back, if the peer has had one; what we
// have sent last is still in its place.
func (p *pingPong) arrived(wc *verbs.WC, ours bool, n int) error {
	at := p.size + int(wc.ID)*p.place()
	if wc.ByteLen != uint32(p.place()) {
		return fmt.Errorf("message %d has %d bytes, want %d", n, wc.ByteLen, p.place())
	}
	if p.service == verbs.QPTypeUD && (wc.Flags&verbs.WCGRH != 0) != p.path.global {
		return fmt.Errorf("message %d has flags %#x, and its path is global: %t", n, wc.Flags, p.path.global)
	}
	message := p.mr.Bytes()[at : at+p.place()]
	if p.echo && ours && !bytes.Equal(message[p.place()-p.size:], p.mr.Bytes()[:p.size]) {
		return fmt.Errorf("message %d is not what we have sent", n)
	}
	clear(message)
	return nil
}
