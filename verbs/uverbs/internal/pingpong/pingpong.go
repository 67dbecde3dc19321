// Package pingpong does what rdma-core's pingpong programs do: two queue pairs send
// each other messages in turn. It is for tests of devices: of one with itself, and with the
// C programs at the other end.
package pingpong

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

// Game is what both ends agree on.
type Game struct {
	Device  string
	Service verbs.QPType // 0: RC
	Shared  int          // QPs with an SRQ; 0: one QP, with receives of its own
	Size    int          // bytes of a message
	Rounds  int          // messages that each end sends, on all QPs together
	Events  bool         // wait for completions on the channel, instead of polling
	Thread  bool         // and there block the thread
	Echo    bool         // the peer sends what it has received, as the C programs do: compare it
}

// End is one of two ends, which are alike. Each sends its next message when that of the peer
// has arrived. With an SRQ several pairs of QPs do so at once. The ends tell each other
// their addresses through a TCP connection.
type End struct {
	Game

	Ctx     *verbs.Context
	Channel *verbs.CompChannel
	CQ      *verbs.CQ
	QP      *verbs.QP // the first
	MR      *verbs.MR // what is sent, and behind that a place for each receive
	Path    Path
	Send    []verbs.SendWR // made once
	Recv    []verbs.RecvWR // the same, all that there are
	Elapsed time.Duration  // of the whole game

	pairs []pair // one for each QP
	srq   *verbs.SRQ
	free  []verbs.RecvWR // those that are not posted
}

// A pair is a QP with its peer.
type pair struct {
	qp       *verbs.QP
	peer     *verbs.Datagram // UD
	pending  bool            // a message is under way
	owed     int             // messages that have arrived and are not answered
	received bool            // one has arrived
}

const (
	// SendID is the ID of what is sent; receives have the numbers of their places.
	SendID = 1 << 32
	// QKey is that of the pingpong programs, and of perftest.
	QKey = 0x11111111
	// Patience is for what must happen; no game that succeeds takes that long.
	Patience = time.Minute

	// GRHSize is how far behind the beginning of a receive a message of UD is, whether it has a
	// GRH or not.
	GRHSize = 40

	receives = 500
	// ibv_srq_pingpong speaks of so many QPs, however few it has.
	mostQPs = 256
)

// Prepare makes everything that needs no peer.
func (e *End) Prepare(pathOf func(*verbs.Context) (Path, error)) (err error) {
	if e.Ctx, err = verbs.Open(e.Device); err != nil {
		return err
	}
	if e.Path, err = pathOf(e.Ctx); err != nil {
		return err
	}
	pd, err := e.Ctx.AllocPD()
	if err != nil {
		return err
	}
	if e.Service == 0 {
		e.Service = verbs.QPTypeRC
	}
	places := receives
	if e.Size >= 1<<16 {
		places = 10 // memory is locked
	}
	if e.MR, err = pd.AllocMR(e.Size+places*e.place(), verbs.AccessLocalWrite, verbs.MROptions{}); err != nil {
		return err
	}
	for i := range places {
		e.Recv = append(e.Recv, verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{e.MR.SGE(e.Size+i*e.place(), e.place())}})
	}
	e.free = append(e.free, e.Recv...)
	e.Send = []verbs.SendWR{{ID: SendID, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{e.MR.SGE(0, e.Size)}}}
	if e.Channel, err = e.Ctx.CreateCompChannel(); err != nil {
		return err
	}
	if e.CQ, err = e.Ctx.CreateCQ(verbs.CQAttr{CQE: places + max(e.Shared, 1)}, e.Channel); err != nil {
		return err
	}
	init := verbs.QPInitAttr{
		Type: e.Service, SendCQ: e.CQ, RecvCQ: e.CQ,
		Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: places, MaxSendSGE: 1, MaxRecvSGE: 1},
	}
	if e.Shared > 0 {
		if e.srq, err = pd.CreateSRQ(verbs.SRQAttr{MaxWR: places, MaxSGE: 1}); err != nil {
			return err
		}
		init.SRQ, init.Cap.MaxRecvWR, init.Cap.MaxRecvSGE = e.srq, 0, 0
	}
	for range max(e.Shared, 1) {
		qp, err := pd.CreateQP(init)
		if err != nil {
			return err
		}
		e.pairs = append(e.pairs, pair{qp: qp})
		mask := verbs.QPAttrState | verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrAccess
		if e.Service == verbs.QPTypeUD {
			mask = verbs.QPAttrState | verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrQKey
		}
		if err := qp.Modify(verbs.QPAttr{State: verbs.QPStateInit, Port: 1, QKey: QKey}, mask); err != nil {
			return err
		}
	}
	e.QP = e.pairs[0].qp
	return e.refill()
}

// place is the size of a receive.
func (e *End) place() int {
	if e.Service == verbs.QPTypeUD {
		return GRHSize + e.Size
	}
	return e.Size
}

// refill posts all receives that are free.
func (e *End) refill() error {
	post := e.QP.PostRecv
	if e.srq != nil {
		post = e.srq.PostRecv
	}
	_, err := post(e.free)
	e.free = e.free[:0]
	return err
}

// The message of the TCP connection: LID, QP number, first packet number and
// GID in hexadecimal digits, and a zero byte.
const messageLength = len("0000:000000:000000:00000000000000000000000000000000") + 1

// writeAddresses says where our QPs are.
func (e *End) writeAddresses(c net.Conn) error {
	var b []byte
	for i := range e.addresses() {
		qpn := uint32(0)
		if i < len(e.pairs) {
			qpn = e.pairs[i].qp.Num()
		}
		b = fmt.Appendf(b, "%04x:%06x:%06x:%s\x00", e.Path.LID, qpn, psn, hex.EncodeToString(e.Path.GID.GID[:]))
	}
	_, err := c.Write(b)
	return err
}

// Address is where the first QP is.
func (e *End) Address() Address { return e.Path.Address(e.QP) }

// addresses is how many each end sends.
func (e *End) addresses() int {
	if e.Shared > 0 {
		return mostQPs
	}
	return 1
}

// readAddresses returns where the peer's QPs are.
func (e *End) readAddresses(c net.Conn) ([]Address, error) {
	list := make([]Address, e.addresses())
	for i := range list {
		a := &list[i]
		b := make([]byte, messageLength)
		if _, err := io.ReadFull(c, b); err != nil {
			return nil, err
		}
		var text string
		if _, err := fmt.Sscanf(string(b[:len(b)-1]), "%x:%x:%x:%32s", &a.LID, &a.QPN, &a.PSN, &text); err != nil {
			return nil, err
		}
		if _, err := hex.Decode(a.GID[:], []byte(text)); err != nil {
			return nil, err
		}
	}
	return list[:len(e.pairs)], nil
}

// Serve waits for a client on ln, and plays with it.
func (e *End) Serve(ln *net.TCPListener) error {
	if err := ln.SetDeadline(time.Now().Add(Patience)); err != nil {
		return err
	}
	c, err := ln.Accept() // ends with a client, or after Patience
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(Patience)); err != nil {
		return err
	}
	peers, err := e.readAddresses(c)
	if err != nil {
		return err
	}
	if err := e.Connect(peers...); err != nil {
		return err
	}
	if err := e.writeAddresses(c); err != nil {
		return err
	}
	if err := e.arm(); err != nil {
		return err
	}
	if _, err := io.ReadFull(c, make([]byte, len("done")+1)); err != nil {
		return err
	}
	return e.play(false)
}

// Dial plays with the server at addr.
func (e *End) Dial(addr string) error {
	c, err := net.DialTimeout("tcp", addr, Patience)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(Patience)); err != nil {
		return err
	}
	if err := e.writeAddresses(c); err != nil {
		return err
	}
	peers, err := e.readAddresses(c)
	if err != nil {
		return err
	}
	if err := e.arm(); err != nil {
		return err
	}
	if err := e.Connect(peers...); err != nil {
		return err
	}
	if _, err := c.Write([]byte("done\x00")); err != nil {
		return err
	}
	return e.play(true)
}

func (e *End) arm() error {
	if !e.Events {
		return nil
	}
	return e.CQ.Arm(false)
}

// Connect connects each QP with its peer.
func (e *End) Connect(peers ...Address) error {
	for i := range e.pairs {
		q, peer := &e.pairs[i], peers[i]
		if err := e.Path.Connect(q.qp, e.Service, peer); err != nil {
			return err
		}
		if e.Service != verbs.QPTypeUD {
			continue
		}
		ah, err := q.qp.PD().CreateAH(e.Path.To(peer.LID, peer.GID))
		if err != nil {
			return err
		}
		q.peer = &verbs.Datagram{AH: ah, QPN: peer.QPN, QKey: QKey}
	}
	return nil
}

// play sends and receives rounds messages. A send follows when the one before
// it is done and a message of the peer has arrived.
func (e *End) play(first bool) error {
	start := time.Now()
	if first {
		e.stamp(0)
		for i := range e.pairs {
			if err := e.post(&e.pairs[i]); err != nil {
				return err
			}
		}
	}
	var wcs [2]verbs.WC
	sent, got := 0, 0
	for sent < e.Rounds || got < e.Rounds {
		n, err := e.completions(wcs[:], start.Add(Patience))
		if err != nil {
			return err
		}
		for i := range wcs[:n] {
			wc := &wcs[i]
			if wc.Status != verbs.WCSuccess {
				return fmt.Errorf("completion of %d after %d rounds: %w", wc.ID, got, wc.Status)
			}
			q := e.pairOf(wc.QPN)
			if wc.ID == SendID {
				sent++
				q.pending = false
			} else {
				if err := e.arrived(wc, first || q.received, got); err != nil {
					return err
				}
				got++
				q.owed++
				q.received = true
				if e.free = append(e.free, e.Recv[wc.ID]); len(e.Recv)-len(e.free) <= len(e.pairs) {
					if err := e.refill(); err != nil {
						return err
					}
				}
			}
			if q.owed > 0 && !q.pending && sent < e.Rounds {
				q.owed--
				e.stamp(got)
				if err := e.post(q); err != nil {
					return err
				}
			}
		}
	}
	e.Elapsed = time.Since(start)
	return nil
}

func (e *End) pairOf(qpn uint32) *pair {
	for i := range e.pairs {
		if e.pairs[i].qp.Num() == qpn {
			return &e.pairs[i]
		}
	}
	panic(fmt.Sprintf("a completion of QP %#x, which is none of ours", qpn))
}

func (e *End) post(q *pair) error {
	q.pending = true
	e.Send[0].Datagram = q.peer
	_, err := q.qp.PostSend(e.Send)
	return err
}

// completions waits for one or two completions, or until the game's deadline.
// Who polls looks at the clock now and then only: it would be timed too.
func (e *End) completions(wcs []verbs.WC, deadline time.Time) (int, error) {
	for polls := 1; ; polls++ {
		n, err := e.CQ.Poll(wcs)
		if n > 0 || err != nil {
			return n, err
		}
		if !e.Events {
			if polls%(1<<12) == 0 && time.Now().After(deadline) {
				return 0, os.ErrDeadlineExceeded
			}
			continue
		}
		if e.Thread { // ends with a completion or the deadline
			err = e.Channel.WaitThread(deadline)
		} else {
			err = e.Channel.Wait(deadline)
		}
		if err != nil {
			return 0, err
		}
		if err := e.CQ.Arm(false); err != nil {
			return 0, err
		}
	}
}

// stamp writes the n-th message. Those of several QPs are the same: their peers have one memory
// for all.
func (e *End) stamp(n int) {
	if e.Echo && e.Shared <= 1 {
		Fill(e.MR.Bytes()[:e.Size], n)
	} else if e.Echo {
		Fill(e.MR.Bytes()[:e.Size], 0)
	}
}

// arrived looks at a message. It is one of ours that comes back, if the peer has had one; what we
// have sent last is still in its place.
func (e *End) arrived(wc *verbs.WC, ours bool, n int) error {
	at := e.Size + int(wc.ID)*e.place()
	if wc.ByteLen != uint32(e.place()) {
		return fmt.Errorf("message %d has %d bytes, want %d", n, wc.ByteLen, e.place())
	}
	if e.Service == verbs.QPTypeUD && (wc.Flags&verbs.WCGRH != 0) != e.Path.Global {
		return fmt.Errorf("message %d has flags %#x, and its path is global: %t", n, wc.Flags, e.Path.Global)
	}
	message := e.MR.Bytes()[at : at+e.place()]
	if e.Echo && ours && !bytes.Equal(message[e.place()-e.Size:], e.MR.Bytes()[:e.Size]) {
		return fmt.Errorf("message %d is not what we have sent", n)
	}
	clear(message)
	return nil
}
