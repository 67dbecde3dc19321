package rnet

import (
	"context"
	"errors"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/softcm"
	"github.com/seed-b9b531af/ramjet/rnet/internal/mux"
	"github.com/seed-b9b531af/ramjet/rnet/internal/peeraddr"
	"github.com/seed-b9b531af/ramjet/rnet/internal/settings"
)

// Listener is what Listen and NewListener return for the TCP networks, "unix" and "unixpacket",
// unless the transport is TCP: then it is a *net.TCPListener or a *net.UnixListener. Its
// methods may be called from any goroutine. Errors are *net.OpError values that wrap
// net.ErrClosed after Close.
type Listener struct {
	tcp     tcpListener // of plain peers; nil if somebody else listens there: see loops
	addr    net.Addr
	network string
	v6Only  bool // of an IPv6 socket at all addresses: it takes no IPv4 peers
	set     settings.Settings
	socket  softcm.UnixSocket // that tcp is, the zero one if it is of TCP
	given   syscall.Conn      // tcp, if that is a Unix socket that was not opened here; nil otherwise
	fabrics []rcm.Listener    // guarded by mu

	avail   chan struct{}   // one token: look at queue
	tcpFree chan struct{}   // one token: nobody accepts from tcp
	done    chan struct{}   // closed by Close
	work    sync.WaitGroup  // what is done for peers, and the waits for names
	accepts atomic.Uint32   // calls of Accept
	tcpIdle atomic.Int64    // until when, after processBegan, TCP's backlog is not looked at again: see tcpDue
	open    context.Context // ends with Close, and with it the set-up of sessions
	stop    context.CancelFunc
	loops   *loopChoice // for the sessions; nil: the streams wait for Accept

	mu       sync.Mutex
	queue    []*Conn // streams that wait for Accept, from first on; guarded by mu
	first    int     // guarded by mu
	waiting  int     // calls of Accept that wait for a token of avail and were sent none; guarded by mu
	inTCP    bool    // somebody accepts from tcp, and looks at queue when interrupted; guarded by mu
	closing  bool    // Close was called; guarded by mu
	closed   bool    // nobody else is accepted over TCP, and no session; guarded by mu
	draining bool    // handed over: over when the sessions have ended; see listener_handover.go; guarded by mu
	over     bool    // no more streams come, and Accept fails behind the last one; guarded by mu
	expired  bool
	timer    *time.Timer           // of the deadline, or of the end of draining
	tcpRest  *time.Timer           // gives tcpFree back; made when it is first needed; guarded by mu
	sessions map[*session]struct{} // guarded by mu
	pushed   uint64                // streams that came; guarded by mu
	lost     ListenerStats         // what listeners on fabrics had counted that are no more; guarded by mu

	space peeraddr.Space // addresses of the streams' peers

	overTCP, failed atomic.Uint64 // connections over TCP, sessions that did not come about
}

// newListener makes a listener that listens nowhere yet. It must be closed.
func newListener(addr net.Addr, network string, set settings.Settings, loops *loopChoice) *Listener {
	l := &Listener{
		addr: addr, network: network, set: set, loops: loops,
		avail: make(chan struct{}, 1), tcpFree: make(chan struct{}, 1), done: make(chan struct{}),
	}
	l.open, l.stop = context.WithCancel(context.Background())
	return l
}

// acceptFrom makes the listener serve TCP peers. They wait in the kernel's backlog
// until Accept takes them; where there is to be no TCP they are reset at once.
func (l *Listener) acceptFrom(tcp tcpListener) {
	l.tcp = tcp
	if l.set.Transport != fallback.Auto {
		l.work.Go(l.resetTCP)
		return
	}
	l.tcpFree <- struct{}{}
}

// resetTCP resets what comes over TCP, until Close.
func (l *Listener) resetTCP() {
	l.tcp.SetDeadline(time.Time{}) // of a listener that was given
	for {
		conn, err := l.tcp.Accept() // ended by a peer, or Close
		if err == nil {
			reset(conn)
			continue
		}
		select { // ended by the clock (there are no descriptors, say), or Close
		case <-time.After(minListenPause):
		case <-l.done:
			return
		}
	}
}

// reset ends a connection that was accepted so that its peer cannot take it for one
// that was served.
func reset(conn net.Conn) {
	tcp, ok := conn.(interface{ SetLinger(int) error })
	if !ok { // of a Unix socket
		softcm.Drop(conn)
		return
	}
	tcp.SetLinger(0)
	conn.Close()
}

// maxBacklog bounds the streams that wait for Accept: what a peer opens and
// resets at once leaves its session's table, but not the queue.
const maxBacklog = 1 << 17

// push takes a stream that a peer has opened. The owner of its session's poll lock
// calls it, so it does not wait.
func (l *Listener) push(c *Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over || l.queued() >= maxBacklog {
		return false
	}
	l.queue = append(l.queue, c)
	l.pushed++
	l.signal()
	return true
}

// queued returns how many streams wait for Accept. mu is held.
func (l *Listener) queued() int { return len(l.queue) - l.first }

// longAgo is a deadline that ends a wait at once.
var longAgo = time.Unix(1, 0)

// signal makes one Accept look at the state. mu is held.
func (l *Listener) signal() {
	if l.waiting > 0 {
		select {
		case l.avail <- struct{}{}:
			l.waiting--
		default: // who gets that token looks, and signals the next
		}
	}
	if l.inTCP {
		l.inTCP = false
		l.tcp.SetDeadline(longAgo)
	}
}

// tcpFirst is how many calls of Accept prefer streams before one prefers what
// came over TCP, which would wait for ever behind a queue that is never empty.
const tcpFirst = 16

// Accept waits for the next connection, a [*Conn] or a [*MessageConn], a *net.TCPConn or a
// *net.UnixConn. It ends with the deadline, and with Close when the address is free. Any number of
// goroutines may call it; each connection is returned to one of them.
func (l *Listener) Accept() (net.Conn, error) {
	if l.accepts.Add(1)%tcpFirst == 0 && l.tcpDue() {
		select {
		case <-l.tcpFree:
			if conn, err := l.acceptTCP(true); conn != nil || err != nil {
				return conn, err
			}
		default: // another Accept waits there
		}
	}
	for {
		conn, err := l.popSoon()
		if conn != nil {
			return conn, nil
		}
		if err != nil {
			return nil, l.opError("accept", err)
		}
		select {
		case <-l.avail: // ended by push, a deadline, Close, another Accept
		case <-l.tcpFree: // ended by another Accept
			l.waitNoMore()
			if conn, err := l.acceptTCP(false); conn != nil || err != nil {
				return conn, err
			}
		}
	}
}

// tcpDue reports whether a connection waits in TCP's backlog. To look costs a system call: if none
// did it looks again after a tcpRestTime.
func (l *Listener) tcpDue() bool {
	now := int64(time.Since(processBegan))
	if now < l.tcpIdle.Load() {
		return false
	}
	waits := l.tcpWaits()
	if !waits {
		l.tcpIdle.Store(now + int64(tcpRestTime))
	}
	return waits
}

// maxVain is how long an Accept that prefers TCP waits for a connection that was in
// the backlog, and has gone.
const maxVain = time.Millisecond

// acceptTCP accepts from the TCP listener, and gives tcpFree back. It returns neither
// a connection nor an error when it was interrupted by signal, and unless it is to
// prefer TCP does not begin if there is anything else that Accept can return.
func (l *Listener) acceptTCP(prefer bool) (net.Conn, error) {
	began := time.Now()
	streamsCame := false
	defer func() { l.leaveTCP(streamsCame && time.Since(began) < shortTCPWait) }()
	for {
		var deadline time.Time
		if prefer {
			deadline = time.Now().Add(maxVain)
		}
		l.mu.Lock()
		if l.closed || l.expired || l.queued() > 0 && !prefer {
			l.mu.Unlock()
			return nil, nil
		}
		l.tcp.SetDeadline(deadline)
		l.inTCP = true
		l.mu.Unlock()
		conn, err := l.tcp.Accept() // ended by a peer, signal, Close
		l.mu.Lock()
		l.inTCP = false
		closed := l.closed
		streamsCame = err != nil && l.queued() > 0
		l.mu.Unlock()
		switch {
		case err == nil && l.atUnixSocket() && softcm.IsProof(conn.RemoteAddr().String()):
			softcm.Drop(conn)
			return nil, nil
		case err == nil: // also when it has been closed meanwhile, as package net does
			l.overTCP.Add(1)
			return conn, nil
		case closed || errors.Is(err, os.ErrDeadlineExceeded):
			return nil, nil
		default:
			return nil, err
		}
	}
}

// If streams interrupt waits with TCP's backlog that were shorter than shortTCPWait, nobody waits there
// for a tcpRestTime: the next stream would do the same, and each time costs several system calls.
const (
	shortTCPWait = 200 * time.Microsecond
	tcpRestTime  = time.Millisecond
)

// leaveTCP lets another Accept go to the TCP listener, unless that is closed: at once, or in
// a while.
func (l *Listener) leaveTCP(rest bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
	case !rest:
		l.tcpFree <- struct{}{}
	case l.tcpRest == nil:
		l.tcpRest = time.AfterFunc(tcpRestTime, func() { l.leaveTCP(false) })
	default:
		l.tcpRest.Reset(tcpRestTime)
	}
}

// popSoon is pop, but lets other goroutines run if the queue is empty: of those that take in
// what arrives one may have a stream for it. To wait with TCP's backlog takes several system calls.
// If it returns neither a stream nor an error, the caller is to wait for avail.
func (l *Listener) popSoon() (net.Conn, error) {
	conn, err := l.pop()
	if conn != nil || err != nil {
		return conn, err
	}
	runtime.Gosched()
	l.mu.Lock()
	defer l.mu.Unlock()
	conn, err = l.popLocked()
	if conn == nil && err == nil {
		l.waiting++
	}
	return conn, err
}

// waitNoMore takes back that the caller is to wait for avail.
func (l *Listener) waitNoMore() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting > 0 {
		l.waiting--
		return
	}
	select {
	case <-l.avail: // it was for the caller, who looks now
	default:
	}
}

func (l *Listener) pop() (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.popLocked()
}

// popLocked returns the oldest stream in the queue, or the reason for which Accept
// must not wait, or neither. mu is held.
func (l *Listener) popLocked() (net.Conn, error) {
	switch {
	case l.over && l.queued() == 0:
		if l.timer != nil {
			l.timer.Stop()
		}
		l.signal() // to the next one who waits
		return nil, net.ErrClosed
	case l.expired:
		l.signal()
		return nil, os.ErrDeadlineExceeded
	case l.queued() == 0:
		return nil, nil
	}
	c := l.queue[l.first]
	l.queue[l.first] = nil
	if l.first++; 2*l.first >= len(l.queue) {
		l.queue = slices.Delete(l.queue, 0, l.first)
		l.first = 0
	}
	if l.queued() > 0 || l.over { // over: the next one who waits learns that
		l.signal()
	}
	return connFor(l.network, c), nil
}

// SetDeadline makes Accept fail after t with an error that wraps
// os.ErrDeadlineExceeded; zero means never.
func (l *Listener) SetDeadline(t time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return l.opError("set", net.ErrClosed)
	}
	if l.timer != nil {
		l.timer.Stop()
	}
	l.timer = nil // it may be firing already, and finds that it is no more
	l.expired = false
	if t.IsZero() {
		return nil
	}
	left := time.Until(t)
	if left <= 0 { // an Accept right after this must not see what waits
		l.expired = true
		l.signal()
		return nil
	}
	var timer *time.Timer
	timer = time.AfterFunc(left, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.timer == timer {
			l.expired = true
			l.signal()
		}
	})
	l.timer = timer
	return nil
}

// Addr returns the address of the listener, a *net.TCPAddr or a *net.UnixAddr.
func (l *Listener) Addr() net.Addr { return l.addr }

// Close stops listening. Connections that Accept has returned live on; those
// that wait for it are reset.
//
// If another process of the same user waits to take the listener over (see NewListener), Close
// waits up to 5 s for its answer. Meanwhile, and until all who have dialed know of the other
// process, mostly within half a second, Accept returns what has been dialed here; then it fails.
// What is not accepted 5 s after Close is reset.
func (l *Listener) Close() error {
	l.mu.Lock()
	if l.closing {
		l.mu.Unlock()
		return l.opError("close", net.ErrClosed)
	}
	l.closing = true
	l.mu.Unlock()
	l.offer()
	l.mu.Lock()
	l.closed, l.expired = true, false
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	l.mu.Unlock()
	close(l.done)
	handed := l.handOver()
	if handed {
		retireAll(l.openSessions(), (*mux.Mux).Drain)
	} else {
		retireAll(l.openSessions(), (*mux.Mux).Retire) // before another listener can have the port
	}
	var err error
	if l.tcp != nil {
		err = l.tcp.Close()
	}
	l.closeFabrics()
	// Now only: who learns from Accept that the listener is closed may listen at its address again.
	if handed {
		l.drain()
	} else {
		l.resetQueue()
	}
	l.work.Wait()                // ended by the closed listeners, and open
	if liveListeners.remove(l) { // it had come so far
		attachable.release()
	}
	return err
}

// resetQueue has no more streams come, and resets those that nobody has accepted.
func (l *Listener) resetQueue() {
	l.mu.Lock()
	l.drained()
	queue := l.queue[l.first:]
	l.queue, l.first = nil, 0
	l.mu.Unlock()
	for _, c := range queue {
		c.SetLinger(0)
		c.Close()
	}
}

func (l *Listener) openSessions() []*session {
	l.mu.Lock()
	defer l.mu.Unlock()
	sessions := make([]*session, 0, len(l.sessions))
	for s := range l.sessions {
		sessions = append(sessions, s)
	}
	return sessions
}

// closeFabrics closes the listeners of the fabrics, and ends the set-up of
// sessions.
func (l *Listener) closeFabrics() {
	l.stop()
	for _, fl := range l.onFabrics() {
		fl.Close()
	}
}

func (l *Listener) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: l.network, Addr: l.Addr(), Err: err}
}
