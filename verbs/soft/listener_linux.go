package soft

import (
	"encoding/hex"
	"errors"
	"os"
	"sync"
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
				l.handlers.Go(func() { l.greet(conn) }) // ends with the hello, its timeout, or the link
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

// readHello returns nil without an error if datagrams follow instead.
func readHello(conn *samehost.Conn) (*heldHello, error) {
	if err := welcome(conn); err != nil {
		return nil, err
	}
	if err := conn.SetReadDeadline(time.Now().Add(helloTimeout)); err != nil {
		return nil, err
	}
	h, err := takeHello(conn)
	if err == errDatagrams {
		return nil, conn.SetReadDeadline(time.Time{})
	}
	if err != nil {
		return nil, err
	}
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		samehost.CloseReceived(h.fds...)
		return nil, err
	}
	return h, nil
}

// errDatagrams says that datagrams follow in the place of a hello.
var errDatagrams = errors.New("datagrams instead of a hello")

// takeHello reads one packet, which is to be a hello.
func takeHello(conn *samehost.Conn) (*heldHello, error) {
	m, fds, err := readPacket(conn) // ends with a packet, hang-up, the deadline, or Close
	if err != nil {
		return nil, err
	}
	if m.Kind == protocol.KindDatagrams && len(fds) == 0 {
		return nil, errDatagrams
	}
	if m.Kind != protocol.KindHello {
		samehost.CloseReceived(fds...)
		return nil, protocol.Malformed("kind %d before hello", m.Kind)
	}
	if len(fds) != m.Hello.Descriptors() { // it may be held, and must not hold more
		samehost.CloseReceived(fds...)
		return nil, protocol.Malformed("hello with %d descriptors", len(fds))
	}
	return &heldHello{conn: conn, peer: peerOf(conn), hello: m.Hello, fds: fds}, nil
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

// welcome lets a peer that was admitted send descriptors, and tells it so: where the
// kernel has kept them off until now, its hello may have failed.
func welcome(conn *samehost.Conn) error {
	if !conn.TakeDescriptors() {
		return nil
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	return sendPacket(raw, protocol.EncodeBare(protocol.KindWelcome))
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
