package soft

import (
	"encoding/hex"
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/samehost"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/protocol"
	"golang.org/x/sys/unix"
)

// listener is the device socket: the abstract Unix socket named by the GID,
// where the QPs of other processes say hello. Its goroutine runs only while
// a QP waits to be dialed; who comes earlier waits in the kernel's backlog.
type listener struct {
	dev *device
	ln  *samehost.Listener

	mu        sync.Mutex
	waiting   int                                 // guarded by mu: QPs that wait to be dialed
	running   bool                                // guarded by mu: the goroutine is there
	closed    bool                                // guarded by mu
	greeting  map[*samehost.Conn]struct{}         // guarded by mu: have not said hello yet
	held      map[[2]protocol.Endpoint]*heldHello // guarded by mu
	datagrams map[*samehost.Conn]struct{}         // guarded by mu: devices that send datagrams here
	handlers  sync.WaitGroup                      // goroutines, of links that came in here too
}

// heldHello is a hello for a QP that was not at RTR when it came.
type heldHello struct {
	conn  *samehost.Conn
	peer  Peer
	hello protocol.Hello
	fds   []int
	timer *time.Timer
}

// Bounds for peers that come and do not go on.
const (
	maxGreeting  = 1024
	maxHeld      = 256
	helloTimeout = 5 * time.Second
	holdTimeout  = 10 * time.Second
)

func socketName(gid verbs.GID) string { return "@ramjet-soft-" + hex.EncodeToString(gid[:]) }

func listen(d *device) (*listener, error) {
	ln, err := samehost.Listen(samehost.ListenConfig{
		Type: unix.SOCK_SEQPACKET, Name: socketName(d.gid), Backlog: unix.SOMAXCONN, Admit: admit,
	})
	if err != nil {
		return nil, err
	}
	return &listener{
		dev: d, ln: ln, greeting: make(map[*samehost.Conn]struct{}), held: make(map[[2]protocol.Endpoint]*heldHello),
		datagrams: make(map[*samehost.Conn]struct{}),
	}, nil
}

// begin has the goroutine run until as many end.
func (l *listener) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting++; l.waiting > 1 || l.closed {
		return
	}
	_ = l.ln.SetDeadline(time.Time{}) // fails only on a closed socket, where accept fails too
	if !l.running {
		l.running = true
		l.handlers.Go(l.accept) // ends with the last end, or with close
	}
}

func (l *listener) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting--; l.waiting == 0 {
		_ = l.ln.SetDeadline(time.Unix(1, 0)) // as above
	}
}

func (l *listener) close() {
	l.mu.Lock()
	l.closed = true
	held := l.held
	l.held = nil
	for conn := range l.greeting {
		conn.Close()
	}
	for conn := range l.datagrams {
		conn.Close()
	}
	l.mu.Unlock()
	l.ln.Close()
	for _, h := range held {
		h.drop()
	}
}

// wait returns when no goroutine of the listener is left. Before it, close
// must have been called and the QPs destroyed.
func (l *listener) wait() { l.handlers.Wait() }

func (l *listener) accept() {
	for {
		conn, err := l.ln.Accept() // ends with a peer, end or close
		if err == nil {
			if l.mayGreet(conn) {
				// ends with the hello, its timeout, or the link
				l.handlers.Go(func() { l.greet(conn) })
			} else {
				conn.Close()
			}
			continue
		}
		l.mu.Lock()
		if l.closed || (l.waiting == 0 && errors.Is(err, os.ErrDeadlineExceeded)) {
			l.running = false
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
	}
}

func (l *listener) mayGreet(conn *samehost.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.greeting) >= maxGreeting {
		return false
	}
	l.greeting[conn] = struct{}{}
	return true
}

// greet reads the hello of one connection and passes it to the QP that it is
// for. A peer that does not speak the protocol is disconnected.
func (l *listener) greet(conn *samehost.Conn) {
	h, err := readHello(conn)
	l.mu.Lock()
	delete(l.greeting, conn)
	l.mu.Unlock()
	if err != nil {
		conn.Close()
		return
	}
	if h == nil {
		l.serveDatagrams(conn)
		return
	}
	p := l.waitingPairing(h)
	if p == nil {
		l.hold(h)
		// The QP may have reached RTR between the look and the hold.
		if p = l.waitingPairing(h); p == nil {
			return
		}
		if h = l.claim(h.hello.From, h.hello.To); h == nil {
			return
		}
	}
	if link := p.accept(h); link != nil {
		p.serve(link)
	}
}

// waitingPairing returns the pairing that a hello is for.
func (l *listener) waitingPairing(h *heldHello) *pairing {
	if h.hello.To.GID != l.dev.gid || !h.hello.From.Less(h.hello.To) {
		return nil
	}
	q := l.dev.qp(h.hello.To.QPN)
	if q == nil {
		return nil
	}
	q.sendMu.Lock()
	defer q.sendMu.Unlock()
	if q.pairing == nil || q.pairing.by != nil || q.pairing.peer != h.hello.From {
		return nil
	}
	return q.pairing
}

// hold keeps a hello for some time, a newer one from the same QP instead of
// an older.
func (l *listener) hold(h *heldHello) {
	key := [2]protocol.Endpoint{h.hello.From, h.hello.To}
	l.mu.Lock()
	old := l.held[key]
	if l.closed || (old == nil && len(l.held) >= maxHeld) {
		old = h
	} else {
		l.held[key] = h
		h.timer = time.AfterFunc(holdTimeout, func() {
			if l.remove(key, h) {
				h.drop()
			}
		})
	}
	l.mu.Unlock()
	if old != nil {
		old.drop()
	}
}

func (l *listener) remove(key [2]protocol.Endpoint, h *heldHello) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held[key] != h {
		return false
	}
	delete(l.held, key)
	return true
}

// claim takes the hello that is held from one QP to another, or nil.
func (l *listener) claim(from, to protocol.Endpoint) *heldHello {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := [2]protocol.Endpoint{from, to}
	h := l.held[key]
	if h != nil {
		delete(l.held, key)
		h.timer.Stop()
	}
	return h
}

func (h *heldHello) drop() {
	if h.timer != nil {
		h.timer.Stop()
	}
	samehost.CloseReceived(h.fds...)
	h.conn.Close()
}

func (l *listener) keepDatagrams(conn *samehost.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.datagrams) >= maxDatagramPeers {
		return false
	}
	l.datagrams[conn] = struct{}{}
	return true
}

// endDatagrams hangs up on those who send: there is no QP any more.
func (l *listener) endDatagrams() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for conn := range l.datagrams {
		conn.Close()
	}
}

// maxDatagramPeers is how many devices may send to one.
const maxDatagramPeers = 1024

// dialDevice connects to the socket of a device.
func dialDevice(gid verbs.GID) (*samehost.Conn, error) {
	return samehost.Dial(unix.SOCK_SEQPACKET, admission(), socketName(gid))
}

// gone reports whether a dial failed because the peer's device is closed, or its name
// is taken by somebody whom we do not talk to.
func gone(err error) bool {
	var denied *samehost.DeniedError
	return errors.Is(err, syscall.ECONNREFUSED) || errors.As(err, &denied)
}

// admission is what package samehost is to ask about a process that we connect to: admit,
// or nothing where there is no policy, which comes to the same and is known to it.
func admission() func(samehost.Peer) bool {
	if peerPolicy.Load() == nil {
		return nil
	}
	return admit
}

// admit asks the policy about the process at the other end.
func admit(p samehost.Peer) bool {
	if policy := peerPolicy.Load(); policy != nil {
		return (*policy)(Peer{UID: p.UID, GID: p.GID, PID: p.PID})
	}
	return p.SameUser()
}

func peerOf(conn *samehost.Conn) Peer {
	p := conn.Peer()
	return Peer{UID: p.UID, GID: p.GID, PID: p.PID}
}
