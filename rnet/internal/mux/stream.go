package mux

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"
)

// Stream is one byte stream of a mux: two halves, and what is about both. Mux.Open makes
// one of the zero Stream, or the peer's OPEN does.
//
// Errors are bare: net.ErrClosed after Close, os.ErrDeadlineExceeded, errnos, and
// io.EOF after the peer's last byte. A reset is told of once, by a Read or a Write:
// after that Writes fail with EPIPE.
type Stream struct {
	m  *Mux
	id uint32

	closed atomic.Bool
	ends   atomic.Uint32 // end* bits
	shut   atomic.Uint32 // shut* bits
	told   atomic.Bool   // a Read or Write has returned ECONNRESET

	recv receiveHalf
	send sendHalf

	// Of streams that an event loop serves: who is told of what happens, written
	// by the owner of the poll lock and under recv.mu; and whether the stream stands in
	// the queue for room, or is woken from it, which is the loop's to know.
	sink   Sink
	untold int // bytes that have come and the sink was not told of; guarded by the poll lock
	inLine bool
}

// The events that end a stream. When it has ended the mux forgets it.
const (
	endFinSent uint32 = 1 << iota
	endFinRecv
	endReset
	endDetached // taken out of the mux's table
	endClosed   // the FIN of a Close was sent or has come: it ends both directions
)

// What the application has ended by CloseWrite and CloseRead.
const (
	shutWrite uint32 = 1 << iota
	shutRead
)

// init makes a zero Stream one of m.
func (st *Stream) init(m *Mux) {
	st.m = m
	st.recv.init(st)
	st.send.init(st)
}

// Mux returns the mux of the stream.
func (st *Stream) Mux() *Mux { return st.m }

// ID returns what the stream is called in frames.
func (st *Stream) ID() uint32 { return st.id }

// LocalAddr returns the address of our end.
func (st *Stream) LocalAddr() netip.AddrPort {
	if st.m.cfg.Dialed {
		return st.name()
	}
	return st.m.local
}

// RemoteAddr returns the address of the peer's end.
func (st *Stream) RemoteAddr() netip.AddrPort {
	if st.m.cfg.Dialed {
		return st.m.remote
	}
	return st.name()
}

// name returns the address of the end that dialed.
func (st *Stream) name() netip.AddrPort { return st.m.addrs.at(st.id & slotMask) }

// Read reads up to len(p) bytes. It waits until there is at least one, or the
// peer has ended its half: then it returns io.EOF. Of several Reads at once
// one waits, the others wait for it.
func (st *Stream) Read(p []byte) (int, error) {
	st.recv.callMu.Lock()
	n, err := st.recv.read(p)
	st.recv.callMu.Unlock()
	if err != nil {
		st.toldBy(err)
	}
	return n, err
}

// toldBy notes that a Read has returned err, if that is a reset.
func (st *Stream) toldBy(err error) {
	if err == syscall.ECONNRESET {
		st.told.Store(true)
	}
}

// Peek returns at least the next n bytes without taking them, and all that lies
// together with them. They are valid until the next call that reads.
func (st *Stream) Peek(n int) ([]byte, error) {
	st.recv.callMu.Lock()
	defer st.recv.callMu.Unlock()
	p, err := st.recv.peek(max(n, 1), true)
	st.toldBy(err)
	return p, err
}

// Discard takes n bytes off the stream and waits until so many have arrived. If
// it takes fewer, it returns how many, and why.
func (st *Stream) Discard(n int) (int, error) {
	st.recv.callMu.Lock()
	defer st.recv.callMu.Unlock()
	done := 0
	for done < n {
		p, err := st.recv.peek(1, false)
		if err != nil {
			st.toldBy(err)
			return done, err
		}
		k := min(len(p), n-done)
		st.recv.discard(k)
		done += k
	}
	return done, nil
}

// Next waits for data and takes it off the stream, in ordinary memory. The chunk is
// the caller's, who recycles it.
func (st *Stream) Next() (*Chunk, error) {
	k, err := st.recv.next()
	st.toldBy(err)
	return k, err
}

// Write sends p. It returns when all bytes have been copied out of p. It blocks while
// the peer's window or its ring is full. Of several Writes at once each is sent as a
// whole, one after the other.
func (st *Stream) Write(p []byte) (int, error) {
	st.m.lookBeforeWrite()
	if done, err := st.send.writeFrame(p); err != nil {
		return 0, st.reason(err)
	} else if done {
		return len(p), nil
	}
	st.send.callMu.Lock()
	n, err := st.send.write(p, nil)
	st.send.callMu.Unlock()
	return n, err
}

// MayRead returns the error with which a Read would fail whatever has arrived: after Close
// or the read deadline.
func (st *Stream) MayRead() error { return st.recv.readable() }

// MayWrite is MayRead for what writes.
func (st *Stream) MayWrite() error { return st.send.writable() }

// SetReadDeadline sets the time after which what reads fails; zero means never.
func (st *Stream) SetReadDeadline(t time.Time) error {
	if st.closed.Load() {
		return net.ErrClosed
	}
	if st.recv.end.set(t, &st.recv) {
		st.recv.wake()
	}
	return nil
}

// SetWriteDeadline is SetReadDeadline for what writes.
func (st *Stream) SetWriteDeadline(t time.Time) error {
	if st.closed.Load() {
		return net.ErrClosed
	}
	if st.send.end.set(t, &st.send) {
		st.send.wake()
	}
	return nil
}

// Closed reports whether Close was called, or the stream was refused.
func (st *Stream) Closed() bool { return st.closed.Load() }

// Close ends the stream: what waits returns, what was written is delivered, and the
// peer reads io.EOF after it, or a reset if linger is 0 or something was not read.
// It waits for up to linger seconds until the end is sent, if that is negative for as long as patience
// allows; on a network for FlushTime at least, until the peer's device has it.
func (st *Stream) Close(linger int32) error {
	if err := st.BeginClose(); err != nil {
		return err
	}
	st.EndClose(linger)
	return nil
}

// BeginClose is the first part of Close: what waits returns, and nothing is taken off the stream any
// more by calls that come after it. EndClose follows.
func (st *Stream) BeginClose() error {
	if st.closed.Swap(true) {
		return net.ErrClosed
	}
	st.recv.end.stop()
	st.send.end.stop()
	st.recv.wake()
	st.send.wake()
	return nil
}

// EndClose is the rest of Close.
func (st *Stream) EndClose(linger int32) {
	read, unread := st.recv.drop()
	if st.send.buffer.Load() != nil {
		st.send.callMu.Lock() // ended by the Write or Commit that Close has woken
		st.send.unlockOut()
	}
	end := ctlClose
	if linger == 0 || unread {
		end = ctlReset
	}
	st.send.close(end, read)
	blocked := st.m.out.blocked.Load()
	if blocked {
		st.m.pollLock.Look() // credit may have come: the process may end at once
	}
	if blocked || !st.m.cfg.Dialed {
		st.m.pollLock.EnsureArmed() // for the credit; for the last OPEN of a client
	}
	switch {
	case end == ctlReset:
	case linger > 0 || st.m.link.OnWire():
		st.linger(time.Duration(linger) * time.Second)
	case blocked && !st.m.onLoop():
		st.lingerForRoom()
	}
}

// linger waits until the FIN has been sent, and on a network has arrived.
func (st *Stream) linger(patience time.Duration) {
	if st.m.link.OnWire() {
		patience = max(patience, FlushTime)
	}
	end := time.Now().Add(patience)
	st.send.lingerUntil(end)
	st.send.flushUntil(end)
}

// lingerForRoom waits until the FIN has been sent: over TCP a process may exit right after Close.
func (st *Stream) lingerForRoom() {
	out := &st.m.out
	begin := time.Now()
	out.mu.Lock()
	left := out.patience.left(begin)
	out.mu.Unlock()
	if left < leastPatience {
		return
	}
	st.send.lingerUntil(begin.Add(left))
	took := time.Since(begin)
	out.mu.Lock()
	out.patience.spend(took)
	out.mu.Unlock()
}

// FlushTime bounds the wait of Close for the network, or for room, unless its caller allows more.
const FlushTime = time.Second

// refuse ends a stream that nobody took.
func (st *Stream) refuse() {
	st.closed.Store(true)
	st.recv.dropLater()
	st.send.close(ctlReset, 0)
}

// CloseWrite ends the sending half: the peer reads io.EOF after what was written. It
// fails with ENOTCONN if the stream has come to its end on both sides.
func (st *Stream) CloseWrite() error {
	if st.closed.Load() {
		return net.ErrClosed
	}
	st.m.pollLock.Look() // the peer may have ended its half
	st.m.out.mu.Lock()
	over := st.disconnected()
	again := st.shut.Or(shutWrite)&shutWrite != 0
	if st.send.err == nil {
		st.send.err = syscall.EPIPE
	}
	st.m.out.mu.Unlock()
	switch {
	case over:
		return syscall.ENOTCONN
	case again:
		return nil
	}
	st.send.wake()
	st.control(ctlFin)
	return nil
}

// CloseRead ends the receiving half: Read returns what has arrived, and then io.EOF
// instead of waiting. The peer is not told. It fails as CloseWrite does.
func (st *Stream) CloseRead() error {
	if st.closed.Load() {
		return net.ErrClosed
	}
	st.m.pollLock.Look() // the peer may have ended its half
	st.m.out.mu.Lock()
	over := st.disconnected()
	st.m.out.mu.Unlock()
	if over {
		return syscall.ENOTCONN
	}
	st.recv.mu.Lock()
	st.shut.Or(shutRead)
	st.recv.mu.Unlock()
	st.recv.wake()
	return nil
}

// disconnected reports whether both directions have come to their end, or the
// stream was reset. The send lock is held.
func (st *Stream) disconnected() bool {
	return st.send.broken || st.shut.Load()&shutWrite != 0 && st.ends.Load()&endFinRecv != 0
}

// ended reports whether the mux has forgotten the stream: its id may
// stand for another one already.
func (st *Stream) ended() bool { return st.ends.Load()&endDetached != 0 }

// note adds ends and takes the stream out of the table when it has ended.
// It returns true if that was the last one: the caller then calls the
// mux's Left, after it has sent what is to be sent.
func (st *Stream) note(bits uint32) (last bool) {
	ends := st.ends.Or(bits) | bits
	if ends&(endReset|endClosed) != 0 || ends&(endFinSent|endFinRecv) == endFinSent|endFinRecv {
		return st.detach()
	}
	return false
}

// detach is note for a stream that ends without a word.
func (st *Stream) detach() (last bool) {
	if st.ends.Or(endDetached)&endDetached != 0 {
		return false
	}
	return st.m.streams.remove(st, st.m.cfg.Dialed) == 0
}

// finished takes a FIN that says no more. The owner of the poll lock calls it.
func (st *Stream) finished() {
	st.noMoreComes()
	if st.note(endFinRecv) {
		st.m.Left()
	}
}

// peerClosed takes the FIN of a Close. The peer has read so many of our bytes: if that is not all
// that we have sent it is a reset for us. Over TCP the peer's kernel tells us, which knows what has
// arrived; here we know what has not been read, wherever it is. The owner of the poll lock calls it.
func (st *Stream) peerClosed(read uint64) error {
	out := &st.m.out
	out.mu.Lock()
	sent := st.send.window.Sent()
	if read > sent {
		out.mu.Unlock()
		return fmt.Errorf("%w: stream %#x: %d bytes read, %d sent", ErrProtocol, st.id, read, sent)
	}
	st.send.peerGone = true
	out.control.drop(&st.send)
	out.mu.Unlock()
	last := st.note(endFinRecv | endClosed) // before those who look for it are woken
	if read < sent {
		st.abort(syscall.ECONNRESET)
	} else {
		st.noMoreComes()
		st.send.wake()
	}
	if last {
		st.m.Left()
	}
	return nil
}

// noMoreComes ends the half that receives, behind what has arrived.
func (st *Stream) noMoreComes() {
	st.recv.mu.Lock()
	if st.recv.err == nil {
		st.recv.err = io.EOF
	}
	st.recv.mu.Unlock()
	st.recv.wake()
	st.noteEnd(io.EOF)
}

// reset takes a RESET. The owner of the poll lock calls it.
func (st *Stream) reset() {
	last := st.note(endReset) // before those who look for it are woken
	st.abort(syscall.ECONNRESET)
	st.forgetControl()
	if last {
		st.m.Left()
	}
}

// resetPeer answers data that comes after CloseRead and CloseWrite: nothing that
// the peer could send is wanted, nor is it told of us otherwise. The owner of the poll lock
// calls it.
func (st *Stream) resetPeer() {
	st.control(ctlReset)
	st.abort(syscall.ECONNRESET)
}

// abort ends both halves with err, unless they have come to their end. A Write
// after the peer's last byte fails with EPIPE all the same: Reads tell that end.
func (st *Stream) abort(err error) {
	st.recv.mu.Lock()
	sendErr := err
	if st.recv.err == nil {
		st.recv.err = err
	} else if st.recv.err == io.EOF {
		sendErr = syscall.EPIPE
	}
	st.recv.mu.Unlock()
	st.m.out.mu.Lock()
	st.send.broken = true
	if st.send.err == nil || st.send.err == syscall.EPIPE {
		st.send.err = sendErr
	}
	st.m.out.mu.Unlock()
	st.send.wake()
	st.recv.wake()
	st.noteEnd(err)
}

// reason prefers what the application did to how the mux saw it.
func (st *Stream) reason(err error) error {
	if err != nil && st.closed.Load() {
		return net.ErrClosed
	}
	return err
}
