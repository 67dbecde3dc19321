package mux

import (
	"io"
	"sync"
	"syscall"

	"github.com/seed-b9b531af/ramjet/rnet/internal/wait"
)

// Show calls f with what has arrived, as far as it lies together, or if nothing has
// with the end, nil if there is none yet. It takes off the stream as many bytes as f
// says, and calls f again until that is done, each time when there is more than f has
// left. How much that is it keeps in left, for the next Show; -1 is for f to be called at once. It ends
// as Read does too, and with the end where no more comes than f has left. f may not read from
// the stream.
func (st *Stream) Show(left *int, f func(data []byte, end error) (taken int, done bool)) error {
	st.recv.callMu.Lock()
	defer st.recv.callMu.Unlock()
	for {
		if err := st.recv.readable(); err != nil {
			return err
		}
		if *left >= 0 {
			// Ended by more data, the end, the deadline, Close.
			p, err := st.recv.peek(*left+1, false)
			if err != nil && err != io.EOF && err != syscall.ECONNRESET {
				return err
			}
			st.recv.discard(0)
			if err != nil && *left > 0 && len(p) == *left {
				return err
			}
		}
		ended := error(nil)
		done, err := st.recv.show(func(data []byte, end error) (int, bool) {
			taken, done := f(data, end)
			if *left, ended = len(data)-taken, end; taken > 0 && *left > 0 {
				*left = -1 // f may want more of it
			}
			return taken, done
		})
		switch {
		case err != nil || done:
			return err
		case ended != nil:
			return ended // there is nothing to wait for
		}
	}
}

// TryShow is Show once, whatever f says, and without waiting: it reports false if
// somebody else reads.
func (st *Stream) TryShow(f func(data []byte, end error) (taken int)) bool {
	if !st.recv.callMu.TryLock() {
		return false
	}
	defer st.recv.callMu.Unlock()
	called := false
	st.recv.show(func(data []byte, end error) (int, bool) {
		called = true
		return f(data, end), true
	})
	return called
}

// show is Show once. callMu is held.
func (r *receiveHalf) show(f func(data []byte, end error) (taken int, done bool)) (done bool, err error) {
	r.st.m.pollLock.Look()
	r.endLoan()
	r.mu.Lock()
	empty, end := r.queue.head == nil, r.ended()
	r.mu.Unlock()
	if empty {
		_, done = f(nil, end)
		return done, nil
	}
	data, err := r.peek(1, true) // f may take its time, and Close come meanwhile
	if err != nil {
		return false, err
	}
	taken, done := f(data, nil)
	r.endLoan()
	r.discard(taken)
	return done, nil
}

// WriteState is what decides what a Write would do now, but for the deadline.
type WriteState struct {
	Ended    bool // it would fail
	peerGone bool
	granted  uint64
}

// WriteState returns the state as it is now.
func (st *Stream) WriteState() WriteState {
	st.m.out.mu.Lock()
	defer st.m.out.mu.Unlock()
	return WriteState{
		Ended:    st.send.err != nil || st.send.broken,
		peerGone: st.send.peerGone,
		granted:  st.send.granted.Load(),
	}
}

// awaiter is where AwaitWrite waits. Few streams have one.
type awaiter struct {
	mu   sync.Mutex // one AwaitWrite at a time
	wait wait.Waiter
}

// AwaitWrite waits until the state is no longer as it was: the window has opened, or
// there is an end. It holds up no Write, for which the window may open, and ends with the
// deadline. It fails as a Write would if there is nothing to wait for.
func (st *Stream) AwaitWrite(was WriteState) error {
	a := st.send.awaiting.Load()
	if a == nil {
		st.send.awaiting.CompareAndSwap(nil, new(awaiter))
		a = st.send.awaiting.Load()
	}
	if st.WriteState() != was {
		return nil // who has mu may wait for the state after that
	}
	a.mu.Lock() // ended by what ends the wait below
	defer a.mu.Unlock()
	for {
		a.wait.Begin()
		if err := st.send.writable(); err != nil {
			return err
		}
		switch {
		case was.Ended:
			return st.send.sendable()
		case st.WriteState() != was:
			return nil
		case st.m.failed.Load():
			return syscall.ECONNRESET
		}
		// ended by window, CloseWrite, deadline, close, reset, peer death
		st.m.pollLock.Wait(&a.wait)
	}
}
