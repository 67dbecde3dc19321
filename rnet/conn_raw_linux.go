package rnet

import (
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// A stream has no descriptor. For a program that asks for one there is a pair of Unix
// sockets: one end is the program's while its function runs. Before, what has arrived is
// written to the other end, and shut down if that is all there will be. Afterwards what
// the function has not read is taken back, what it has read is taken off the stream, and
// what it has written is sent. So the pair is empty between two calls, and a Read, a Write
// and the functions of RawConn may come in any order. What a write deadline leaves stays in
// the pair, and goes with the next call whose function writes.

// socketPair is used by calls, each of which holds it, and by the Conn until Close.
type socketPair struct {
	near, far int
	holders   atomic.Int32
	conn      atomic.Bool // the Conn is among the holders

	mu       sync.Mutex // held for system calls that do not wait
	told     error      // what near has been told of the end: io.EOF, ECONNRESET; guarded by mu
	shutNear bool       // near fails writes; guarded by mu

	sending sync.Mutex    // held while what was written is sent
	taken   atomic.Uint64 // bytes that were taken from far to be sent, by any call
}

func newSocketPair() (*socketPair, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	p := &socketPair{near: fds[0], far: fds[1]}
	p.holders.Store(1)
	p.conn.Store(true)
	return p, nil
}

// hold keeps the descriptors open, and reports whether they are.
func (p *socketPair) hold() bool {
	for n := p.holders.Load(); n > 0; n = p.holders.Load() {
		if p.holders.CompareAndSwap(n, n+1) {
			return true
		}
	}
	return false
}

// release ends a hold. The last one closes.
func (p *socketPair) release() {
	if p.holders.Add(-1) > 0 {
		return
	}
	unix.Close(p.near)
	if p.far >= 0 {
		unix.Close(p.far)
	}
}

// drop ends the hold of the Conn, if it has not ended.
func (p *socketPair) drop() {
	if p.conn.Swap(false) {
		p.release()
	}
}

// maxOffer is how much of what has arrived is offered at once: less than the socket
// holds.
const maxOffer = 32 << 10

// offer writes data to be read at near, and returns how much that took.
func (p *socketPair) offer(data []byte) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.told != nil {
		return 0
	}
	n, _ := unix.SendmsgN(p.far, data[:min(len(data), maxOffer)], nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	return max(n, 0)
}

// takeBack empties near, and returns how much was in it.
func (p *socketPair) takeBack() (left int) {
	var scratch [4 << 10]byte
	for {
		n, _, err := unix.Recvfrom(p.near, scratch[:], unix.MSG_DONTWAIT)
		if err == unix.EINTR {
			continue
		}
		if n <= 0 || err != nil {
			return left
		}
		left += n
	}
}

// tell lets near see the end of what can be read.
func (p *socketPair) tell(end error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.told == end || errors.Is(p.told, unix.ECONNRESET) {
		return
	}
	p.told = end
	if end == io.EOF {
		unix.Shutdown(p.far, unix.SHUT_WR)
		return
	}
	if !p.shutNear {
		p.leaveUnread()
	}
	unix.Close(p.far)
	p.far = -1
}

// leaveUnread leaves something unread in far: a socket that is closed like that resets
// its peer. If there is no room there is enough.
func (p *socketPair) leaveUnread() {
	unix.Sendto(p.near, []byte{0}, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
}

// failWrites lets near see that nothing can be written any more. For the reset that may
// come later it leaves a byte unread now, while near can be written to.
func (p *socketPair) failWrites() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.shutNear {
		p.leaveUnread()
		p.shutNear = true
		unix.Shutdown(p.near, unix.SHUT_WR)
	}
}

// written looks at what the function has written to near, which stays until sent. It does
// not wait.
func (p *socketPair) written(b []byte) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.far < 0 {
		return 0
	}
	if p.shutNear { // the last byte stays
		n, err := unix.IoctlGetInt(p.far, unix.TIOCINQ)
		if err != nil || n <= 1 {
			return 0
		}
		b = b[:min(len(b), n-1)]
	}
	n, _, err := unix.Recvfrom(p.far, b, unix.MSG_DONTWAIT|unix.MSG_PEEK)
	if err != nil {
		return 0
	}
	return n
}

// wrote returns how many bytes functions have written to near so far.
func (p *socketPair) wrote() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	if p.far >= 0 {
		n, _ = unix.IoctlGetInt(p.far, unix.TIOCINQ)
	}
	return p.taken.Load() + uint64(max(n, 0))
}

// sent takes what written has returned, and what has gone.
func (p *socketPair) sent(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.far < 0 || len(b) == 0 {
		return
	}
	n, _, err := unix.Recvfrom(p.far, b, unix.MSG_DONTWAIT)
	for err == unix.EINTR {
		n, _, err = unix.Recvfrom(p.far, b, unix.MSG_DONTWAIT)
	}
	p.taken.Add(uint64(max(n, 0)))
}

// holdSocketPair returns the pair of c, with a hold on it, and makes it if there is none.
func (c *Conn) holdSocketPair() (*socketPair, error) {
	for {
		if c.st.Closed() {
			return nil, net.ErrClosed
		}
		p := c.pair.Load()
		if p != nil && p.hold() {
			return p, nil
		}
		if p != nil {
			continue // Close is about to say so
		}
		made, err := newSocketPair()
		if err != nil {
			return nil, err
		}
		if !c.pair.CompareAndSwap(nil, made) {
			made.drop()
			continue
		}
		runtime.AddCleanup(c, (*socketPair).drop, made) // of a Conn that nobody closes
		if c.st.Closed() {
			c.dropSocketPair() // Close may not have seen it
		}
	}
}

// dropSocketPair lets go of the pair, for Close.
func (c *Conn) dropSocketPair() {
	if p := c.pair.Load(); p != nil {
		p.drop()
	}
}

// show calls f with a descriptor from which data can be read, or the end, and returns
// how much of data it has read.
func (c *Conn) show(p *socketPair, data []byte, end error, f func(fd uintptr) bool) (taken int, done bool) {
	if end != nil {
		p.tell(end)
	}
	if c.st.WriteState().Ended {
		p.failWrites()
	}
	if len(data) > 0 {
		offered := p.offer(data)
		defer func() { taken = offered - p.takeBack() }() // also if f panics
	}
	return 0, f(uintptr(p.near))
}

// sendWritten sends what was written to the descriptor. What a deadline leaves of it stays.
func (c *Conn) sendWritten(p *socketPair) error {
	p.sending.Lock()
	defer p.sending.Unlock()
	var buf [4 << 10]byte
	for {
		piece := buf[:p.written(buf[:])]
		if len(piece) == 0 {
			return nil
		}
		n, err := c.st.Write(piece)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			n = len(piece) // it never will go
		}
		p.sent(piece[:n])
		if err != nil {
			return err
		}
	}
}

// rawConn is a Conn as a syscall.RawConn.
type rawConn Conn

// use calls one of the functions below with the pair, and gives its error the form that
// package net gives it.
func (r *rawConn) use(op string, call func(c *Conn, p *socketPair) error) error {
	c := (*Conn)(r)
	p, err := c.holdSocketPair()
	if err == nil {
		defer p.release() // also if the program's function panics
		err = call(c, p)
	}
	if err != nil {
		err = c.opError(op, err)
	}
	return err
}

// Control calls f. If no Read waits it finds what Read would find.
func (r *rawConn) Control(f func(fd uintptr)) error {
	return r.use("raw-control", func(c *Conn, p *socketPair) error {
		before := p.wrote()
		shown := c.st.TryShow(func(data []byte, end error) int {
			taken, _ := c.show(p, data, end, func(fd uintptr) bool { f(fd); return true })
			return taken
		})
		if !shown {
			f(uintptr(p.near))
		}
		if p.wrote() == before {
			return nil
		}
		return c.sendWritten(p)
	})
}

// Read calls f until it returns true, each time when there is more to read than before,
// or the end. It ends with the read deadline and Close.
func (r *rawConn) Read(f func(fd uintptr) bool) error {
	return r.use("raw-read", func(c *Conn, p *socketPair) error {
		left := -1
		for {
			var done, wrote bool
			var ended error
			err := c.st.Show(&left, func(data []byte, end error) (taken int, leave bool) {
				before := p.wrote()
				taken, done = c.show(p, data, end, f)
				wrote, ended = p.wrote() > before, end
				return taken, done || wrote
			})
			if err == nil && wrote { // behind Show, which keeps others from reading: it may wait for the peer
				err = c.sendWritten(p)
			}
			if err != nil || done {
				return err
			}
			if ended != nil {
				return ended // there is nothing to wait for
			}
		}
	})
}

// Write calls f until it returns true, and sends what it writes. If f has written nothing
// it is called again when the peer lets more be sent, or nothing can be sent any more. It
// ends with the write deadline and Close.
func (r *rawConn) Write(f func(fd uintptr) bool) error {
	return r.use("raw-write", func(c *Conn, p *socketPair) error {
		for {
			state, taken := c.st.WriteState(), p.taken.Load()
			if state.Ended {
				p.failWrites()
			} else if _, err := c.st.Write(nil); errors.Is(err, os.ErrDeadlineExceeded) {
				return err
			}
			if c.st.Closed() {
				return net.ErrClosed
			}
			done := f(uintptr(p.near))
			if err := c.sendWritten(p); err != nil || done {
				return err
			}
			if p.taken.Load() != taken {
				continue // its socket, which may have been full, has room
			}
			if err := c.st.AwaitWrite(state); err != nil {
				return err
			}
		}
	})
}
