package soft

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/samehost"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/protocol"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/sys"
)

// pairing joins a QP that reached RTR with its peer, in the background.
//
// Within one process the two are joined through the table of devices as soon
// as both are there. Between processes the one whose endpoint is less dials
// the device socket of the other, says hello, and gets a hello back once the
// other is at RTR too. A connection manager gives its own connection for that (PairBy),
// and says who begins.
type pairing struct {
	q    *qp
	peer protocol.Endpoint
	self protocol.Endpoint
	by   *connector // nil: the devices' sockets

	mu       sync.Mutex
	conn     *samehost.Conn // guarded by mu: being dialed
	over     bool           // guarded by mu
	listens  bool           // guarded by mu: counted at the listener
	finished chan struct{}  // closed when over

	worker sync.WaitGroup // goroutines of this pairing, until they serve the link
	said   *inbound       // whose segment sayHello sent; of the goroutine that pairs
}

var errOver = errors.New("pairing given up")

// strangers makes QPs of one process pair as those of two do, for tests.
var strangers atomic.Bool

// localPairing makes joining two QPs of this process one step.
var localPairing sync.Mutex

func newPairing(q *qp, peer protocol.Endpoint) *pairing {
	return &pairing{q: q, peer: peer, self: protocol.Endpoint{GID: q.dev.gid, QPN: q.num}, by: q.by, finished: make(chan struct{})}
}

// start begins; it does not wait.
func (p *pairing) start() {
	d := deviceOf(p.peer.GID)
	local := d != nil && !strangers.Load()
	if local {
		p.joinLocal(d)
	}
	switch {
	case p.by != nil && local:
		p.run(p.awaitLocal) // ends when over
		return
	case p.by != nil:
		p.run(p.pairBy) // ends with the pair, or when over
		return
	case local:
		return
	case p.self.Less(p.peer):
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
	other := d.qp(p.peer.QPN)
	if other == nil {
		return // it finds us when it reaches RTR
	}
	localPairing.Lock()
	ours, theirs := p.q.waitsFor(p.peer), other.waitsFor(p.self)
	if ours == nil || theirs == nil || other.uc != p.q.uc || ours.by.onSideOf(theirs.by) {
		localPairing.Unlock()
		return
	}
	a, b := &localLink{peer: other, by: ours.by}, &localLink{peer: p.q, by: theirs.by}
	a.twin, b.twin = b, a
	if other == p.q {
		a.twin = a
	}
	ours.joinSegment(theirs, a)
	if other != p.q {
		theirs.joinSegment(ours, b)
	}
	localPairing.Unlock()
	for _, q := range []*qp{p.q, other} {
		q.onProgress()
	}
	// One of them may have failed or left before it could tell the other.
	p.q.tellIfFailed(a)
	if other != p.q {
		other.tellIfFailed(b)
	}
}

// joinSegment makes the segment of the QP of theirs, of the same process, the one that p's writes into.
func (p *pairing) joinSegment(theirs *pairing, l *localLink) {
	other := theirs.q
	in, wakeFD, err := other.lendSegment(theirs, l.twin)
	switch {
	case err == errOver:
		return
	case err != nil:
		p.q.fail(failure{})
		return
	}
	h := protocol.Hello{Flags: other.helloFlags()}
	if !p.attach(l, func(o *outbound) {
		o.open(in.seg.View, h, wakeFD)
		o.seg, o.in = in.seg, in
		in.grants.toLocal()
	}) {
		in.seg.release()
		sys.CloseFDs(wakeFD)
		return
	}
	if ch := other.recvCQ.ch; ch != nil {
		ch.peerHas(in)
	}
	p.stop()
}

// lendSegment returns what a peer of this process writes into, with a reference to its segment, and
// a wake-up socket, -1 if there is none. The QP waits as p, or has its link l by now: after a RESET
// they would be the next peer's.
func (q *qp) lendSegment(p *pairing, l link) (in *inbound, wakeFD int, err error) {
	q.sendMu.Lock()
	defer q.sendMu.Unlock()
	if q.pairing != p && q.link != l {
		return nil, -1, errOver
	}
	wakeFD = -1
	if ch := q.recvCQ.ch; ch != nil {
		if wakeFD, err = ch.wakeSocket(q.in); err != nil {
			return nil, -1, err
		}
	}
	q.in.seg.retain()
	return q.in, wakeFD, nil
}

// attach gives the QP its peer, and reports whether it still waited for that.
func (p *pairing) attach(l link, open func(*outbound)) bool {
	q := p.q
	q.sendMu.Lock()
	defer q.sendMu.Unlock()
	if q.pairing != p {
		return false
	}
	q.pairing = nil
	open(&q.out)
	q.out.atPoll = q.out.atPoll && q.atPoll
	q.cpus.set(&q.in.seg.Header.CPUs, &q.out.Header.CPUs)
	q.link = l
	q.open = q.mayRun()
	return true
}

// waitsFor returns the pairing if the QP waits to be paired with peer, nil if not.
func (q *qp) waitsFor(peer protocol.Endpoint) *pairing {
	q.sendMu.Lock()
	defer q.sendMu.Unlock()
	if q.pairing == nil || q.pairing.peer != peer {
		return nil
	}
	return q.pairing
}

// tellIfFailed tells the peer over l that we do not work over l any more.
func (q *qp) tellIfFailed(l link) {
	q.sendMu.Lock()
	ok := q.link == l && q.state.Load() != stateErr
	tell := protocol.FaultGone
	if q.link == l && !q.after.peerKnows {
		tell = q.after.tell
	}
	left := q.link == l && q.left
	q.sendMu.Unlock()
	if !ok {
		l.tell(tell)
	}
	if left {
		l.leave()
	}
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
				_, err = conn.Read(make([]byte, protocol.MaxMessage)) // ends with the peer, its patience, or stop
			}
			p.disconnect(conn)
		case gone(err):
			p.giveUp()
			return nil
		}
	}
	return nil
}

// connect dials the peer's device; stop closes the connection.
func (p *pairing) connect() (*samehost.Conn, error) {
	conn, err := p.connectAny()
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

func (p *pairing) connectAny() (*samehost.Conn, error) {
	if p.by == nil {
		return dialDevice(p.peer.GID)
	}
	conn, err := p.by.connect(p.finished)
	// without a policy it is the manager's affair
	if policy := admission(); err == nil && policy != nil && !policy(conn.Peer()) {
		denied := &samehost.DeniedError{Peer: conn.Peer()}
		conn.Close()
		return nil, denied
	}
	return conn, err
}

func (p *pairing) disconnect(conn *samehost.Conn) {
	p.mu.Lock()
	p.conn = nil
	p.mu.Unlock()
	conn.Close()
}

// giveUp fails the QP: the peer's device is closed, or we may not talk to it.
func (p *pairing) giveUp() {
	p.q.sendMu.Lock()
	if p.q.pairing == p {
		p.q.losePeer(failure{send: verbs.WCRetryExcErr, peerKnows: true})
	}
	p.q.unlock()
}

// serve lets the QP work over l, and reads l until its end.
func (p *pairing) serve(l *socketLink) {
	p.said.seg.closeFD() // the peer has its own
	if ch := p.q.recvCQ.ch; ch != nil {
		ch.peerHas(p.said) // as above
	}
	p.q.tellIfFailed(l)
	p.q.onProgress()
	l.serve()
}

// connector is the connection manager of a QP.
type connector struct {
	begins  bool // and says hello first
	connect func(over <-chan struct{}) (*samehost.Conn, error)
	ended   func(err error)
}

// onSideOf reports whether both have dialed, or both have accepted. Such two are no pair, whatever
// their peers say: each has a peer of its own, that says that it is the other one.
func (c *connector) onSideOf(other *connector) bool {
	return c != nil && other != nil && c.begins == other.begins
}

// PairBy has the QP paired over the connection of its connection manager, which knows
// who the peer has to be, and not by the sockets of the devices. One side begins.
//
// connect is called once, from RTR on, on a goroutine of the QP, and waits for the
// connection, which is the QP's from then on. It waits no longer than until over is closed:
// the two are paired without a connection if the peer is in this process. An error fails
// the QP.
//
// ended is called when the peer has ended the pair, or the making of it: with nil if it
// has left in good order, and otherwise with what is wrong. No lock is held. RESET and
// Destroy do not call it, and end all that.
func (q *qp) PairBy(begins bool, connect func(over <-chan struct{}) (*samehost.Conn, error), ended func(err error)) {
	q.sendMu.Lock()
	defer q.sendMu.Unlock()
	q.by = &connector{begins, connect, ended}
}

// pairBy makes the pair over the connection of the connection manager.
func (p *pairing) pairBy() *socketLink {
	conn, err := p.connect() // ends with the connection, or stop
	if err != nil {
		p.giveUp()
		return nil
	}
	shakeHands := p.answer
	if p.by.begins {
		shakeHands = p.greet
	}
	l, err := shakeHands(conn)
	if err != nil {
		p.lose(conn, err)
	}
	return l
}

// awaitLocal has nothing to do while the peer, which is a QP of this process, is on its
// way to RTR. A connection comes only if it is none.
func (p *pairing) awaitLocal() *socketLink {
	conn, err := p.connect() // ends with a connection, or stop
	if err != nil {
		p.giveUp()
		return nil
	}
	p.lose(conn, protocol.Malformed("QP %#x is not one of this process", p.peer.QPN))
	return nil
}

// lose ends a pairing for what came, or did not come, over the only connection.
func (p *pairing) lose(conn *samehost.Conn, err error) {
	p.disconnect(conn)
	p.mu.Lock()
	over := p.over
	p.mu.Unlock()
	if !over {
		p.giveUp()
		go p.by.ended(err) // beside wait, for which it may wait
	}
}

// Leave tells the peer of a QP that has failed that this was in good order.
func (q *qp) Leave() {
	q.sendMu.Lock()
	q.left = true
	l := q.link
	q.sendMu.Unlock()
	if l != nil {
		l.leave()
	}
}
