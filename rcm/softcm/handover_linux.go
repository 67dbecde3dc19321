package softcm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/handshake"
	"github.com/seed-b9b531af/ramjet/verbs/samehost"
	"golang.org/x/sys/unix"
)

// The place of a listener goes from one process to the next without a moment at which nobody
// has it:
//
//	the successor  connects to the listener, and says AWAIT with its address
//	the listener   when it is to close: OFFER, to all who await the same address
//	the successor  TAKE, at once: it runs
//	the listener   HAND, with the sockets that listen, to one who has answered
//	the successor  listens with them
//
// The listener serves until it has an answer, but waits for none without end, and not for
// processes that are stopped. A process that comes too late to be asked gets the place if none has
// answered.
//
// The successor finds what lies in the kernel's queues of the sockets. The listener refuses peers
// that it has already accepted, so that they dial again and come into the queue. Both processes are
// of one user, whoever else the listener admits: dialers take what it hands over for its user's. If
// the listener dies, the successor sees it hang up, and takes the names, which are free.

// Await gets in line for the place of the listener at addr, and does not wait: next does, and
// must be called. It ends with ctx, or when the place is free, as far as that can be told, or
// was handed over. It returns the error of Listen if somebody else has it even so. The error of
// Await is that of Resolve.
//
// A place that was handed over before ctx ended next returns all the same, for nobody else has
// it: who does not want it any more hands it over.
func (f *fabric) Await(addr netip.AddrPort, cfg rcm.ListenConfig) (next func(context.Context) (rcm.Listener, error), err error) {
	fail := func(err error) error { return fmt.Errorf("rcm: wait for %v: %w", addr, err) }
	if f.socket != nil { // nobody has two processes listen there
		return nil, fail(errors.ErrUnsupported)
	}
	at, complete, err := handshake.CompleteListen(addr, cfg)
	if err != nil {
		return nil, fail(err)
	}
	sock, err := dial(f.listenNames(at, cfg.V6Only), nil)
	if err != nil {
		return nil, fail(err)
	}
	sock.TakeDescriptors()
	if err := sock.send(&handshake.Message{Kind: handshake.KindAwait, Dst: at, V6Only: cfg.V6Only}); err != nil {
		sock.Close()
		return nil, fail(err)
	}
	return func(ctx context.Context) (rcm.Listener, error) {
		defer sock.Close()
		fds, err := sock.handed(ctx)
		if err == nil {
			l, err := f.adopt(at, complete, fds)
			if err != nil {
				return nil, fail(err)
			}
			return l, nil
		}
		if ctx.Err() != nil {
			return nil, fail(handshake.ContextError(ctx))
		}
		return f.Listen(addr, cfg)
	}, nil
}

// handed waits for HAND. The error may be that the place is free. If ctx ends, what the listener
// has sent by then is read still; it cannot send more, and so knows that it has to ask somebody
// else.
func (s *socket) handed(ctx context.Context) (fds []int, err error) {
	raw, err := s.SyscallConn()
	if err != nil {
		return nil, err
	}
	offered := false
	read := func() error {
		for again := true; ; {
			var buf [handshake.MaxMessage]byte
			// ended by the listener, ctx, or EndOfWords
			n, received, err := samehost.Receive(raw, buf[:])
			if again && errors.Is(err, unix.ECONNRESET) {
				again = false // said before what the listener sent is given out, see receive
				continue
			}
			if err != nil {
				return hangup(err)
			}
			m, err := handshake.Parse(buf[:n])
			switch {
			case err == nil && m.Kind == handshake.KindHand:
				fds = received
				return nil
			case err != nil || m.Kind != handshake.KindOffer || offered || len(received) > 0:
				samehost.CloseReceived(received...)
				return expected(m, err, handshake.KindHand)
			}
			offered = true
			if ctx.Err() == nil {
				// If the listener has gone already, what it has sent before says so, or is HAND.
				_ = s.send(&handshake.Message{Kind: handshake.KindTake})
			}
		}
	}
	if err = s.interruptible(ctx, read); err != nil && ctx.Err() != nil {
		s.EndOfWords()
		err = read()
	}
	return fds, err
}

// adopt makes a listener of sockets that were handed over: one for each name, and one for the
// directory if the other listener was in one.
func (f *fabric) adopt(addr netip.AddrPort, cfg rcm.ListenConfig, fds []int) (*listener, error) {
	names := f.listenNames(addr, cfg.V6Only)
	if len(fds) < len(names) || len(fds) > len(names)+1 {
		samehost.CloseReceived(fds...)
		return nil, fmt.Errorf("%w: HAND with %d descriptors", rcm.ErrMalformed, len(fds))
	}
	l := f.newListener(addr, cfg)
	l.adopted = time.Now()
	err := l.listenWith(func(sc samehost.ListenConfig, i int) (*samehost.Listener, error) {
		fd := fds[i]
		fds[i] = -1
		return samehost.Adopt(sc, fd)
	})
	if err != nil {
		samehost.CloseReceived(fds...)
		return nil, err
	}
	if l.meeting != nil && len(fds) > len(names) {
		l.meeting.adopt(fds[len(names)])
	} else {
		samehost.CloseReceived(fds[len(names):]...)
	}
	l.meet()
	return l, nil
}

// adopt makes the listener of a socket that stands in the directory. If it cannot, one is
// made as ever.
func (m *meeting) adopt(fd int) {
	ln, err := m.dir.Adopt(m.cfg, fd, m.l.mayHave)
	if err != nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.serve(ln)
}

// maxSuccessors is how many may wait for the place of a listener. They take no
// places of handshakes.
const maxSuccessors = 16

// awaits keeps the connection of a peer who waits for our place, until that is had or he
// hangs up.
func (l *listener) awaits(sock *socket, m handshake.Message) {
	sock.SetReadDeadline(time.Time{})
	l.mu.Lock()
	if m.Dst != l.addr || m.V6Only != l.v6Only || len(l.successors) == maxSuccessors {
		l.mu.Unlock()
		sock.Close()
		return
	}
	l.successors = append(l.successors, sock)
	l.mayAsk(sock, false)
	l.mu.Unlock()
	select {
	case l.awaited <- struct{}{}:
	default:
	}
	var err error
	for err == nil {
		var m handshake.Message
		// ended by the peer, who has no more to say than TAKE, by HandOver or Close
		m, err = sock.receive()
		if err = expected(m, err, handshake.KindTake); err == nil {
			err = l.takes(sock)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.handing && errors.Is(err, errHungUp) && slices.Contains(l.successors, sock) {
		return // HandOver has ended it, and needs it
	}
	l.successors = slices.DeleteFunc(l.successors, func(s *socket) bool { return s == sock })
	sock.Close()
}

// What a successor has been asked, and has said.
const (
	unasked = iota
	asked
	answered
	silent // for all of its time
)

const (
	offerTime  = 5 * time.Second       // for which an answer is waited for: a busy machine may need it
	offerPause = 50 * time.Millisecond // after which it is looked whether any may come
)

// Offer asks the processes that wait for our place whether they are there to take it, and waits
// until one has answered, or none may: they are stopped, have hung up, or have had their time.
// Until then peers are served as ever. HandOver follows.
//
// If we were handed the place ourselves a moment ago, those who waited for it as well were hung up
// on, and are on their way to us.
func (l *listener) Offer() {
	l.expectSuccessors()
	l.mu.Lock()
	if l.taken != nil {
		l.mu.Unlock()
		return
	}
	taken := make(chan struct{})
	l.taken = taken
	successors := slices.Clone(l.successors)
	for _, successor := range successors {
		successor.offer = asked
	}
	l.mu.Unlock()
	for _, successor := range successors {
		successor.SetWriteDeadline(time.Now().Add(offerPause)) // nothing was sent to it so far
		_ = successor.send(&handshake.Message{Kind: handshake.KindOffer})
	}
	timer, ticker := time.NewTimer(offerTime), time.NewTicker(offerPause)
	defer timer.Stop()
	defer ticker.Stop()
	for l.mayAnswer() {
		select { // ends with an answer (takes), or the timers
		case <-taken:
			return
		case <-ticker.C:
		case <-timer.C:
			l.giveUp()
			return
		}
	}
}

// lineTime is how long those who were in line take to get in line again at the most, on a busy
// machine.
const lineTime = 200 * time.Millisecond

// expectSuccessors waits until one has come, or none may come any more.
func (l *listener) expectSuccessors() {
	rest := time.Until(l.adopted.Add(lineTime))
	if rest <= 0 {
		return
	}
	timer := time.NewTimer(rest)
	defer timer.Stop()
	select { // ends with a successor (awaits), or the clock
	case <-l.awaited:
	case <-timer.C:
	}
}

// giveUp notes who has not answered in time.
func (l *listener) giveUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.successors {
		if s.offer == asked {
			s.offer = silent
		}
	}
}

// mayAnswer reports whether one of those who were asked may answer yet.
func (l *listener) mayAnswer() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.successors, func(s *socket) bool { return s.offer == asked && !halted(s) })
}

// halted reports whether a peer is known to be stopped. Unlike stopped it gives one that cannot
// be looked at the benefit of the doubt: the wait is bounded, and one that has ended has hung up.
func halted(s *socket) bool { return statOf(s.Peer().PID).stopped() }

// takes notes that a process takes our place. The error is that it was not asked.
func (l *listener) takes(successor *socket) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if successor.offer != asked && successor.offer != silent {
		return fmt.Errorf("%w: TAKE of what was not offered", rcm.ErrMalformed)
	}
	successor.offer = answered
	select {
	case <-l.taken: // another one has answered
	default:
		close(l.taken)
	}
	return nil
}

// HandOver gives the names of the listener to a process that awaits them, and reports
// whether there was one. Nothing is accepted any more in any case, and Close must follow.
func (l *listener) HandOver() bool {
	l.Offer()
	lns := slices.Clone(l.lns)
	if l.meeting != nil {
		if ln := l.meeting.leave(); ln != nil {
			lns = append(lns, ln)
		}
	}
	for _, ln := range lns {
		ln.Pause()
	}
	if l.handTo(l.settled(), lns) {
		return true
	}
	// One may be in the queue: who has just come need not wait for an answer.
	for _, ln := range l.lns {
		for range unix.SOMAXCONN {
			c, err := ln.Poll()
			if err != nil {
				break
			}
			l.shake(&socket{Conn: c})
		}
	}
	return l.handTo(l.settled(), lns)
}

// settled ends the handshakes, with what the peers have said so far, and returns those who
// wait for our place.
func (l *listener) settled() []*socket {
	l.mu.Lock()
	l.handing = true
	for s := range l.shaking {
		s.EndOfWords() // what it has sent is read still
	}
	l.mu.Unlock()
	l.running.Wait() // ends: nothing is left to wait for
	l.mu.Lock()
	defer l.mu.Unlock()
	successors := l.successors
	l.successors = nil
	return successors
}

// handTo sends the listeners to the first of successors that has taken them, that was not asked,
// or that may answer still, for the one who has may be gone; if it is not stopped and can be sent
// something. It hangs up on all, and reports whether there was one.
func (l *listener) handTo(successors []*socket, lns []*samehost.Listener) bool {
	l.mu.Lock()
	var able []*socket
	for _, offer := range []int{answered, unasked, asked} {
		for _, successor := range successors {
			if successor.offer == offer && !halted(successor) {
				able = append(able, successor)
			}
		}
	}
	l.mu.Unlock()
	packet := (&handshake.Message{Kind: handshake.KindHand}).AppendTo(nil)
	done := slices.ContainsFunc(able, func(successor *socket) bool { return samehost.HandOver(successor.Conn, packet, lns...) == nil })
	for _, successor := range successors {
		successor.Close()
	}
	return done
}
