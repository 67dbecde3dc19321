package soft

import (
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/samehost"
	"golang.org/x/sys/unix"
)

// pairing joins a QP that reached RTR with its peer, in the background.
//
// Within one process the two are joined through the table of devices as soon
// as both are there. Between processes the one whose endpoint is less dials
// the device socket of the other, says hello, and gets a hello back once the
// other is at RTR too.
type pairing struct {
	q    *qp
	peer endpoint
	self endpoint

	mu       sync.Mutex
	conn     *samehost.Conn // guarded by mu: being dialed
	over     bool           // guarded by mu
	listens  bool           // guarded by mu: counted at the listener
	finished chan struct{}  // closed when over

	worker sync.WaitGroup // goroutines of this pairing, until they serve the link
	said   *segment       // what sayHello sent; of the goroutine that pairs
}

// strangers makes QPs of one process pair as those of two do, for tests.
var strangers atomic.Bool

// localPairing makes joining two QPs of this process one step.
var localPairing sync.Mutex

func newPairing(q *qp, peer endpoint) *pairing {
	return &pairing{q: q, peer: peer, self: endpoint{gid: q.dev.gid, qpn: q.num}, finished: make(chan struct{})}
}

// start begins; it does not wait.
func (p *pairing) start() {
	if d := deviceOf(p.peer.gid); d != nil && !strangers.Load() {
		p.joinLocal(d)
		return
	}
	if p.self.less(p.peer) {
		p.run(p.dial) // ends with the pair, or when over
		return
	}
	p.mu.Lock()
	if !p.over {
		p.listens = true
		p.q.dev.listener.begin()
	}
	p.mu.Unlock()
	if h := p.q.dev.listener.claim(p.peer, p.self); h != nil {
		if !p.run(func() *socketLink { return p.accept(h) }) { // ends with the pair
			h.drop()
		}
		return
	}
	p.run(p.watch) // ends when over
}

// run starts a goroutine that makes the pair, and then serves its link; false
// if the pairing is over.
func (p *pairing) run(makePair func() *socketLink) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return false
	}
	p.worker.Add(1)
	go func() {
		l := makePair()
		p.worker.Done()
		if l != nil {
			p.serve(l)
		}
	}()
	return true
}

// wait returns when no goroutine works at the pairing. The caller has stopped
// it and holds no lock.
func (p *pairing) wait() { p.worker.Wait() }

// stop ends it, whether it succeeded or not.
func (p *pairing) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return
	}
	p.over = true
	close(p.finished)
	if p.conn != nil {
		p.conn.Close()
	}
	if p.listens {
		p.q.dev.listener.end()
	}
}

// joinLocal joins the QP with one of this process, if that waits for it.
func (p *pairing) joinLocal(d *device) {
	other := d.qp(p.peer.qpn)
	if other == nil {
		return // it finds us when it reaches RTR
	}
	localPairing.Lock()
	if !p.q.waitsFor(p.peer) || !other.waitsFor(p.self) {
		localPairing.Unlock()
		return
	}
	a, b := &localLink{peer: other}, &localLink{peer: p.q}
	a.twin, b.twin = b, a
	if other == p.q {
		a.twin = a
	}
	p.q.joinSegment(other, a)
	if other != p.q {
		other.joinSegment(p.q, b)
	}
	localPairing.Unlock()
	for _, q := range []*qp{p.q, other} {
		q.onNews()
	}
	// One of them may have failed or left before it could tell the other.
	p.q.tellIfFailed(a)
	if other != p.q {
		other.tellIfFailed(b)
	}
}

// tellIfFailed tells the peer over l that we do not work over l any more.
func (q *qp) tellIfFailed(l link) {
	q.sendMu.Lock()
	ok := q.link == l && q.state.Load() != stateErr
	tell := faultGone
	if q.link == l && !q.after.peerKnows {
		tell = q.after.tell
	}
	q.sendMu.Unlock()
	if !ok {
		l.tell(tell)
	}
}

// waitsFor reports whether the QP waits to be paired with peer.
func (q *qp) waitsFor(peer endpoint) bool {
	q.sendMu.Lock()
	defer q.sendMu.Unlock()
	return q.pairing != nil && q.pairing.peer == peer
}

// joinSegment makes the segment of other, of the same process, the one that q
// writes into.
func (q *qp) joinSegment(other *qp, l link) {
	other.recvMu.Lock()
	in := other.in
	if in == nil {
		other.recvMu.Unlock()
		return
	}
	seg := in.seg.retain()
	other.recvMu.Unlock()
	bell := -1
	if ch := other.recvCQ.ch; ch != nil {
		var err error
		if bell, err = ch.bell(in); err != nil {
			seg.release()
			q.fail(failure{})
			return
		}
	}
	h := hello{}
	if other.srq != nil {
		h.flags |= helloSRQ
	}
	p := q.attach(l, nil, func(o *outbound) {
		o.open(seg.view, h, bell)
		o.seg, o.in = seg, in
	})
	if p == nil {
		seg.release()
		closeFDs(bell)
		return
	}
	p.stop()
}

// attach gives the QP its peer, if it still waits for it (for p, if that is
// set). It returns the pairing that has come to its end, or nil.
func (q *qp) attach(l link, p *pairing, open func(*outbound)) *pairing {
	q.sendMu.Lock()
	defer q.sendMu.Unlock()
	if q.pairing == nil || (p != nil && q.pairing != p) {
		return nil
	}
	done := q.pairing
	q.pairing = nil
	open(&q.out)
	q.link = l
	q.open = q.mayRun()
	return done
}

// The retries of a dial.
const (
	firstBackoff = time.Millisecond
	lastBackoff  = 100 * time.Millisecond
)

// dial says hello to the peer's device until it answers, it is gone, or the
// QP gives up.
func (p *pairing) dial() *socketLink {
	backoff := firstBackoff
	for {
		l, err := p.dialOnce()
		if err == nil {
			return l
		}
		if gone(err) {
			p.giveUp()
			return nil
		}
		if !p.pause(backoff) {
			return nil
		}
		backoff = min(2*backoff, lastBackoff)
	}
}

// pause waits for d; false if the pairing is over before.
func (p *pairing) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select { // ends with the timer, or with stop
	case <-timer.C:
		return true
	case <-p.finished:
		return false
	}
}

// watchDelay is how long a peer that has to dial may take before we look
// whether it is there.
const watchDelay = 10 * time.Millisecond

// watch looks for the death of a peer that has not dialed yet: a connection
// to its device that says nothing is refused or reset when the device is gone.
func (p *pairing) watch() *socketLink {
	for p.pause(watchDelay) {
		conn, err := p.connect()
		switch {
		case err == nil:
			for err == nil { // it may say welcome
				_, err = conn.Read(make([]byte, maxMessage)) // ends with the peer, its patience, or stop
			}
			p.disconnect(conn)
		case gone(err):
			p.giveUp()
			return nil
		}
	}
	return nil
}

// giveUp fails the QP: the peer's device is closed, or we may not talk to it.
func (p *pairing) giveUp() {
	p.q.sendMu.Lock()
	if p.q.pairing == p {
		p.q.failLocked(failure{send: verbs.WCRetryExcErr, peerKnows: true})
	}
	p.q.unlock()
}

// connect dials the peer's device; stop closes the connection.
func (p *pairing) connect() (*samehost.Conn, error) {
	policy := admit
	if peerPolicy.Load() == nil {
		policy = nil // the same, and known to be so
	}
	conn, err := samehost.Dial(unix.SOCK_SEQPACKET, policy, socketName(p.peer.gid))
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		conn.Close()
		return nil, errOver
	}
	p.conn = conn
	return conn, nil
}

// gone reports whether a dial failed because the peer's device is closed, or its name
// is taken by somebody whom we do not talk to.
func gone(err error) bool {
	var denied *samehost.DeniedError
	return errors.Is(err, syscall.ECONNREFUSED) || errors.As(err, &denied)
}

func (p *pairing) disconnect(conn *samehost.Conn) {
	p.mu.Lock()
	p.conn = nil
	p.mu.Unlock()
	conn.Close()
}

func (p *pairing) dialOnce() (*socketLink, error) {
	conn, err := p.connect()
	if err != nil {
		return nil, err
	}
	l, err := p.greet(conn)
	if err != nil {
		p.disconnect(conn)
		return nil, err
	}
	return l, nil
}

var errOver = errors.New("pairing given up")
